"""Types that an environment's methods do not name, and the apps of OpenEnv, which name them.

OpenEnv gives the types of actions and observations to `create_app`, so that environments are often
annotated with the base classes: `def step(self, action: Action) -> Observation`.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from ludus.environment.source_file import SourceFile
from ludus.environment.user_modules import import_user_module
from ludus.errors import ConfigError, LudusError, describe_exception

ACTION_VARIABLE = "LUDUS_ACTION"
"""Environment variable with the type of actions, as `module:Class` or `file.py:Class`, for classes
whose `step` does not name it. A variable, so that worker processes have it too."""
_BASE_FIELDS = {"Action": {"metadata"}, "Observation": {"metadata", "reward", "done"}}
_APP_ARGUMENTS = {"Action": (1, "action_cls"), "Observation": (2, "observation_cls")}
"""Position and name of the types among the arguments of `create_app`, by their base class."""


def read_app(app: Any) -> tuple[Callable[[], Any], dict[str, type[BaseModel]]] | None:
    """The factory and the types of an app that OpenEnv has created; None for anything else."""
    for route in getattr(app, "routes", ()):
        for cell in getattr(getattr(route, "endpoint", None), "__closure__", None) or ():
            server = cell.cell_contents
            if hasattr(server, "_env_factory") and hasattr(server, "action_cls"):
                return server._env_factory, {
                    "action": server.action_cls,
                    "observation": server.observation_cls,
                    "reset_observation": server.reset_observation_cls or server.observation_cls,
                    "state": server.state_cls,
                }
    return None


def is_base(model: type[BaseModel]) -> bool:
    """Whether it is a base class of actions or observations, which does not say their fields."""
    return set(model.model_fields) == _BASE_FIELDS.get(model.__name__)


def find_subclass(cls: type, base: type[BaseModel]) -> type[BaseModel] | None:
    """The type that an environment means by a base class, if that can be told.

    LUDUS_ACTION names it, or `openenv.yaml` or the app beside the environment; or it is the only
    one in the environment's module, or in the `models` module beside it.
    """
    if base.__name__ == "Action" and (named := os.environ.get(ACTION_VARIABLE)):
        return _load_action(named)
    own, known = visible_subclasses(cls, base)
    for name in _declared_names(cls, base.__name__):
        if name in known:
            return known[name]
    return next((next(iter(each.values())) for each in (own, known) if len(each) == 1), None)


def visible_subclasses(
    cls: type, base: type[BaseModel]
) -> tuple[dict[str, type[BaseModel]], dict[str, type[BaseModel]]]:
    """Subclasses by name: those in the environment's module, and those with the ones beside it."""
    own = _subclasses_in(sys.modules.get(cls.__module__), base)
    known = dict(own)
    for folder in _folders(cls):
        for path in (folder / "models.py", folder / "models" / "__init__.py"):
            with suppress(Exception):  # The environment itself does not need this module.
                known = _subclasses_in(_load_models(path), base) | known
    return own, known


def _subclasses_in(module: ModuleType | None, base: type[BaseModel]) -> dict[str, type[BaseModel]]:
    library = base.__module__.partition(".")[0]
    return {
        value.__name__: value
        for value in (vars(module).values() if module is not None else ())
        if inspect.isclass(value)
        and issubclass(value, base)
        and value.__module__.partition(".")[0] != library
    }


def _folders(cls: type) -> list[Path]:
    """The folder of the environment's file and the one above it: `server/` and its package."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return [] if file is None else list(Path(file).absolute().parents[:2])


def _load_models(path: Path) -> ModuleType | None:
    if not path.is_file():
        return None
    # It may be loaded under another name than this file would get: then classes must be the same.
    for module in tuple(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            return module
    return SourceFile(path, "").load_module()


def _load_action(spec: str) -> type[BaseModel]:
    module, _, name = spec.partition(":")
    source = SourceFile.parse(spec)
    try:
        found = source.load() if source else getattr(import_user_module(module), name)
    except (ImportError, AttributeError, ValueError, LudusError) as error:
        reason = str(error) if isinstance(error, LudusError) else describe_exception(error)
        raise ConfigError(f"`action` {spec!r} cannot be loaded: {reason}") from None
    if not (inspect.isclass(found) and issubclass(found, BaseModel)):
        raise ConfigError(f"`action` {spec!r} is not a class of actions. Give module:Class.")
    return found


def _declared_names(cls: type, base: str) -> Iterator[str]:
    """The names of the type in `openenv.yaml` and in apps. The apps are read, not executed."""
    for folder in _folders(cls):
        apps = [folder / "app.py", folder / "server" / "app.py"]
        with suppress(OSError, UnicodeDecodeError):
            manifest = (folder / "openenv.yaml").read_text()
            fields = dict(re.findall(r"""^(\w+): *["']?([\w.:]+)""", manifest, re.MULTILINE))
            if name := fields.get(base.lower()):
                yield re.split("[.:]", name)[-1]
            if app := fields.get("app", "").partition(":")[0].replace(".", "/"):
                apps += [folder / f"{app}.py", folder.parent / f"{app}.py"]
        for path in apps:
            with suppress(OSError, SyntaxError, ValueError):
                yield from _names_in_app(ast.parse(path.read_bytes()), base)


def _names_in_app(tree: ast.AST, base: str) -> Iterator[str]:
    position, keyword = _APP_ARGUMENTS[base]
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(
            ("create_app", "create_fastapi_app")
        ):
            values = [each.value for each in call.keywords if each.arg == keyword]
            values += call.args[position : position + 1]
            yield from (ast.unparse(each).rpartition(".")[2] for each in values)
