"""The root of the sandbox, as options of bubblewrap."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

from ludus.errors import ConfigError

MODE_VARIABLE = "LUDUS_PYTHON_SANDBOX"
ADVICE = f"To run the code of models without a sandbox, set {MODE_VARIABLE}=none."

_LIBRARY_DIRS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


def find_bubblewrap() -> str:
    """The path of the program; raises `ConfigError` where it is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        raise ConfigError(
            "The python environment needs bubblewrap (bwrap), which is not installed. "
            f"Install it: apt install bubblewrap. {ADVICE}"
        )
    return program


def bubblewrap_options() -> list[str]:
    """The options that make the sandbox: namespaces, identity and root."""
    options = ["--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534"]
    options += ["--hostname", "sandbox", "--die-with-parent", "--as-pid-1"]
    visible, hidden = visible_paths()
    for path in map(str, visible):
        options += ["--ro-bind", path, path]
    for path in map(str, hidden):
        options += ["--tmpfs", path, "--remount-ro", path]
    return [*options, "--remount-ro", "/", "--chdir", "/"]


def visible_paths() -> tuple[list[Path], list[Path]]:
    """What the interpreter needs; and what lies below that and must not be seen.

    Installed packages are hidden, above all this one, which has the tests of the tasks.
    """
    multiarch = sysconfig.get_config_var("MULTIARCH") or "."
    libraries = [
        path / multiarch if (path / multiarch).is_dir() else path
        for path in map(Path, _LIBRARY_DIRS)
        if path.is_dir()
    ]
    # In a virtual environment the paths are those of the interpreter that it refers to.
    prefixes = {"platbase": sys.base_exec_prefix}
    standard = {
        Path(sysconfig.get_path(name, vars=prefixes)).resolve() for name in ("stdlib", "platstdlib")
    }
    own_libraries = Path(sys.base_prefix, "lib").resolve()
    if own_libraries not in map(Path, _LIBRARY_DIRS):
        # An interpreter of pyenv, conda, uv or /usr/local, which may bring shared libraries.
        standard = {path for path in standard if not path.is_relative_to(own_libraries)}
        standard.add(own_libraries)
    visible = [base_python(), *libraries, *sorted(standard)]
    hidden = [
        path
        for top in visible
        for pattern in ("*-packages", "python*/*-packages")
        for path in top.glob(pattern)
    ]
    package = Path(__file__).resolve().parents[2]
    if _contains(visible, package) and not _contains(hidden, package):
        hidden.append(package)
    return visible, hidden


def _contains(folders: list[Path], path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def base_python() -> Path:
    """The interpreter that a virtual environment refers to."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()
