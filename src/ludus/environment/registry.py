"""Find environments by spec. Packages register theirs as entry points of `ludus.environments`.

    name                  reasoning_gym
    name:variant          reasoning_gym:chain_sum
    package.module:Class  my_package.maze:Maze      (importable, or below the current folder)
    package.module:app    maze_env.server.app:app   (what an app of `create_app` serves)
    path/to/file.py:Class envs/maze.py:Maze         (from the current folder, or absolute)
    mcp:COMMAND#TASKS     mcp:my-server#tasks.jsonl (the name is `mcp`, the rest is its variant)

URLs and container images (`docker:IMAGE`) are specs too, but this module cannot build them: see
`ludus.client`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points

from ludus.environment.faults import log_fault
from ludus.environment.introspection import build_env_spec
from ludus.environment.source_file import SourceFile, import_user_module
from ludus.environment.spec import EnvSpec
from ludus.errors import BadEnvironment, EnvironmentNotFound, LudusError, did_you_mean

ENTRY_POINT_GROUP = "ludus.environments"
IMAGE_PREFIX = "docker:"
_loaded_files: dict[str, SourceFile] = {}
"""Loaded files by their recorded names, which are found from any folder."""


def is_url(spec: str) -> bool:
    """Whether a spec is a URL, which the registry does not look up."""
    return spec.startswith(("http://", "https://", "ws://", "wss://"))


def image_of(spec: str) -> str | None:
    """The container image of a spec `docker:IMAGE`, else None."""
    return spec.removeprefix(IMAGE_PREFIX) if spec.startswith(IMAGE_PREFIX) else None


def is_remote(spec: str) -> bool:
    """Whether a spec is a URL or a container image, which the registry does not look up."""
    return is_url(spec) or image_of(spec) is not None


def registered_environments() -> Mapping[str, EntryPoint]:
    """The entry points of installed environments by name, without importing them."""
    return {
        point.name: point
        for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: p.name)
    }


def find_environment(spec: str) -> EnvSpec:
    """Find an environment by its name, with or without a variant, its import path or its file."""
    if is_remote(spec):
        raise EnvironmentNotFound(
            f"{spec} is served elsewhere. Give an installed environment, or file.py:Class."
        )
    if (source := SourceFile.parse(spec)) is not None:
        return _load_file(source)
    if spec in _loaded_files:
        return _load_file(_loaded_files[spec])
    name, _, rest = spec.partition(":")
    registered = registered_environments()
    if name in registered:
        return _load_registered(registered[name], rest or None)
    if rest:
        with _explain_faults(name, name):
            try:
                module = import_user_module(name)
            except ModuleNotFoundError as error:
                if error.name and not name.startswith(error.name):
                    raise
                hint = did_you_mean(name, registered, "See `ludus envs`.")
                raise EnvironmentNotFound(
                    f"{spec!r} is neither a registered environment nor an importable class. {hint}"
                ) from None
        if not hasattr(module, rest):
            hint = did_you_mean(rest, vars(module))
            raise EnvironmentNotFound(f"Module {name!r} has no {rest!r}. {hint}")
        found = getattr(module, rest)
        # An app has no name by which it could be found again.
        return build_env_spec(found, name=spec if hasattr(found, "routes") else None)
    hint = did_you_mean(name, registered, "See `ludus envs`, or give file.py:Class or a URL.")
    raise EnvironmentNotFound(f"No environment named {name!r} is installed. {hint}")


@contextmanager
def _explain_faults(what: str, module: str) -> Iterator[None]:
    """Exceptions of the author's module leave the block as `BadEnvironment`."""
    try:
        yield
    except LudusError:
        raise
    except Exception as error:
        raise BadEnvironment(f"{what} cannot be loaded: {log_fault(error, module)}") from error


def _load_file(source: SourceFile) -> EnvSpec:
    with _explain_faults(str(source.path), source.import_name()):
        cls = source.load()
    _loaded_files[source.name] = replace(source, path=source.path.absolute())
    return build_env_spec(cls, name=source.name)


def _load_registered(point: EntryPoint, variant: str | None) -> EnvSpec:
    name = point.name
    with _explain_faults(f"{name!r} ({point.value})", point.module):
        cls = point.load()
    if variant is None:
        return build_env_spec(cls, name=name)
    known = list(cls.variants()) if hasattr(cls, "variants") else []
    if variant not in known and variant == getattr(cls, "__name__", None):
        # The package has the name of its environment, and the spec is module:Class.
        return build_env_spec(cls, name=name)
    if variant not in known and not getattr(cls, "any_variant", False):
        hint = did_you_mean(variant, known, f"See `ludus envs {name}`.")
        raise EnvironmentNotFound(f"{name!r} has no variant {variant!r}. {hint}")
    return build_env_spec(cls, name=name, variant=variant)
