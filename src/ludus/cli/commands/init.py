"""`ludus init`: create a package with a working environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ludus.cli.program import command
from ludus.options import Option, expand_path


@command
def init(
    name: Annotated[str, Option(), "Package name, such as find_number."],
    *,
    directory: Annotated[
        Path | None, Option(name="in", default="this folder", parse=expand_path), "Parent folder."
    ] = None,
) -> None:
    """Create an environment package with an entry point, a client, a test and OpenEnv's manifest.

    Example: ludus init find_number
    """
    import keyword
    import sys
    from importlib.resources import files
    from string import Template

    from ludus.cli.display.console import console
    from ludus.environment.registry import registered_environments
    from ludus.errors import LudusError
    from ludus.publish.openenv_files import MANIFEST_FILE, app_module, manifest

    module = name.replace("-", "_").lower()
    if not (module.isidentifier() and module.isascii()):
        raise LudusError(
            f"{name!r} cannot be the name of a package: use letters from a to z, digits and "
            "underscores, and begin with a letter."
        )
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise LudusError(f"Python has something named {module!r} already: choose another name.")
    if module in registered_environments():
        raise LudusError(
            f"An environment named {module} is installed already: choose another name."
        )
    target = (directory or Path.cwd()) / module
    names = {
        "module": module,
        "class_name": "".join(part.title() for part in module.split("_")),
        "distribution": module.replace("_", "-"),
    }
    skeleton = files("ludus.cli") / "skeleton"
    layout = {
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "README.md.txt",
        f"src/{module}/__init__.py": "package.py.txt",
        f"src/{module}/client.py": "client.py.txt",
        f"tests/test_{module}.py": "test.py.txt",
    }
    texts = {
        path: Template((skeleton / source).read_text()).substitute(names)
        for path, source in layout.items()
    }
    texts[MANIFEST_FILE] = manifest(module, description="An environment for Ludus and OpenEnv.")
    texts["server/app.py"] = app_module(f"{module}:{names['class_name']}")
    try:
        target.mkdir(parents=True)
        for path, text in texts.items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    except FileExistsError as error:
        raise LudusError(f"{target} exists already. Choose another name, or remove it.") from error
    except OSError as error:
        raise LudusError(f"{target} cannot be written: {error.strerror or error}.") from error
    out = console()
    out.print(f"[bold]{target}[/]")
    out.print(f"  pip install -e {target} pytest", markup=False)
    out.print(f"  ludus check {module}", markup=False)
    out.print(f"  python -m pytest {target}/tests", markup=False)
