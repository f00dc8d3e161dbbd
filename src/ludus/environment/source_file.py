"""Modules of the user: in files (`path/to/my_env.py:Guess`), and by their dotted names.

A file in a package is imported by its dotted name. Any other file is imported under its own
name, with its folder on the import path, so that it can import its neighbours. Modules are found as
`python -m` finds them: installed, or below the current folder.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ludus.errors import EnvironmentNotFound, did_you_mean


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file and the name of a class in it, which is empty if none was given."""

    path: Path
    attribute: str

    @classmethod
    def parse(cls, spec: str) -> SourceFile | None:
        """Parse a spec; None if it does not name a file."""
        path, _, attribute = spec.partition(":")
        if not path.endswith(".py") or "://" in spec:
            return None
        return cls(Path(path).expanduser(), attribute)

    @property
    def module(self) -> str:
        """The dotted name, from the outermost folder that is a package."""
        path = self.path.absolute()
        parts = [path.stem.replace(".", "_")]
        for folder in path.parents:
            if not (folder / "__init__.py").exists():
                break
            parts.insert(0, folder.name)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def name(self) -> str:
        """The recorded name, which does not depend on how the path is written."""
        return f"{self.module}:{self.attribute}"

    def load(self) -> Any:
        """Load the class. Exceptions of the module itself are not wrapped."""
        if not self.path.is_file():
            folder = self.path.parent
            names = [file.name for file in folder.glob("*.py")] if folder.is_dir() else []
            hint = did_you_mean(self.path.name, names)
            raise EnvironmentNotFound(f"There is no file {self.path}. {hint}".strip())
        name = self.import_name()
        if name in sys.modules:
            module = sys.modules[name]
        elif "." in name:
            module = importlib.import_module(name)
        else:
            spec = importlib.util.spec_from_file_location(name, self.path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        if hasattr(module, self.attribute):
            return getattr(module, self.attribute)
        specs = [
            f"{self.path}:{name}"
            for name, value in vars(module).items()
            if isinstance(value, type)
            and value.__module__ == module.__name__
            and hasattr(value, "reset")
            and hasattr(value, "step")
        ]
        listed = f"It has {', '.join(specs)}." if specs else ""
        if not self.attribute:
            problem = f"{self.path} is a file: name the class in it. {listed}"
            raise EnvironmentNotFound(problem.strip())
        hint = did_you_mean(self.attribute, vars(module), listed)
        raise EnvironmentNotFound(f"{self.path} has no {self.attribute!r}. {hint}")

    def import_name(self) -> str:
        """The name of the module in this process: `module`, unless that name is taken.

        A file may be called `random.py`, and two folders may each have an `env.py`.
        """
        path = self.path.absolute()
        root = path.parents[self.module.count(".") + (path.stem == "__init__")]
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        if _is_name_free(self.module, path):
            return self.module
        return f"{self.module}_{hashlib.blake2b(bytes(path), digest_size=4).hexdigest()}"


def recorded_name(spec: str) -> str:
    """The name of a source file's environment in episodes and runs, without a local path."""
    source = SourceFile.parse(spec)
    return source.name if source is not None and source.attribute else spec


def _is_name_free(name: str, path: Path) -> bool:
    """Whether no other file would be imported under this name."""
    if (loaded := sys.modules.get(name)) is not None:
        origin = getattr(loaded, "__file__", None)
        return origin is not None and Path(origin).resolve() == path.resolve()
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        # A parent package does not load; the import itself will raise the reason.
        return True
    return spec is None or Path(spec.origin or "").resolve() == path.resolve()


def import_user_module(name: str) -> ModuleType:
    """Import a module by its dotted name."""
    _add_current_folder()
    return importlib.import_module(name)


def user_module_path(name: str) -> Path | None:
    """The file of a module, or the folder of the outermost package that it is in.

    None if there is no such module. Nothing is imported.
    """
    _add_current_folder()
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):  # The second: a module in memory that has no spec.
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return None if spec.origin is None else Path(spec.origin)


def _add_current_folder() -> None:
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
