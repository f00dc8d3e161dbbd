"""Read a recipe: a TOML file with a table for each stage, in the order in which they run.

[collect]
env = "wordle"
num_episodes = 200

[curate]
runs = ["{collect}"]      # the output folder of an earlier stage

[defaults]                # for all stages whose command has these options
system_prompt = "…"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ludus.data.json_files import read_text
from ludus.data.run_folder import RUNS_DIR
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, did_you_mean, similar_path_hint

DEFAULTS = "defaults"
EARLIER_DIR = "earlier"
"""Folder, beside the stages' folders, of results that were replaced."""
_MAX_CHARS = 1_000_000
_TOP_LEVEL = ("description", "output_dir", "next")
_STAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_REFERENCE = re.compile(
    rf"\{{(?P<stage>{_STAGE_NAME.pattern})\}}|\{{(?P<literal>\{{{_STAGE_NAME.pattern}\}})\}}"
)
"""`{collect}` is a stage, and `{{answer}}` the text {answer}."""
_COMMAND_KEY = "command"


@dataclass(frozen=True, slots=True)
class Stage:
    """A table of a recipe."""

    name: str
    command: str
    """The command that it runs: by default the one of the same name."""
    options: JsonObject
    """Options as in the file, with references such as `{collect}`."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The stages that it names, each once."""
        return tuple(dict.fromkeys(references_in(self.options)))


@dataclass(frozen=True, slots=True)
class Recipe:
    """Stages in the order in which they run."""

    name: str
    description: str
    output_dir: Path
    stages: tuple[Stage, ...]
    defaults: JsonObject
    """Options of all stages whose command has them."""
    next_commands: tuple[str, ...]
    """Commands to go further, printed at the end."""


def shipped_recipes() -> dict[str, str]:
    """The built-in recipes, as text by their names."""
    folder = files("ludus.recipe") / "shipped"
    recipes = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    return {
        file.name.removesuffix(".toml"): file.read_text(encoding="utf-8")
        for file in sorted(recipes, key=lambda file: file.name)
    }


def read_recipe(
    source: str, *, overrides: Iterable[str] = (), output_dir: Path | None = None
) -> Recipe:
    """Read a file, or a built-in recipe by its name; `overrides` are as `grpo.steps=50`."""
    path, shipped = Path(source).expanduser(), shipped_recipes()
    try:
        is_shipped = source in shipped and not path.is_file()
        table = tomllib.loads(shipped[source] if is_shipped else read_text(path, _MAX_CHARS))
        for assignment in overrides:
            _override(table, assignment)
        return _parse_recipe(source if is_shipped else path.stem, table, output_dir)
    except FileNotFoundError:
        hint = did_you_mean(source, shipped) or similar_path_hint(source)
        hint = hint or f"Built-in recipes: {', '.join(shipped)}."
        raise ConfigError(f"There is no recipe {source!r}. {hint}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{source} is not a text file in UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source} cannot be read: its values are nested too deeply.") from None


def substitute(value: Any, folders: Mapping[str, str]) -> Any:
    """Replace references to stages by their folders, in texts, lists and tables."""
    if isinstance(value, str):
        return _REFERENCE.sub(
            lambda match: match["literal"] or folders.get(match["stage"], match[0]), value
        )
    if isinstance(value, Mapping):
        return {key: substitute(item, folders) for key, item in value.items()}
    return [substitute(item, folders) for item in value] if isinstance(value, list) else value


def texts_in(value: object) -> Iterator[str]:
    """Yield all texts in a value: itself, or the items of a list or table."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)


def references_in(value: object) -> Iterator[str]:
    """Yield the names of the stages that a value refers to."""
    for text in texts_in(value):
        yield from (match["stage"] for match in _REFERENCE.finditer(text) if match["stage"])


def _override(table: JsonObject, assignment: str) -> None:
    """Apply `STAGE.KEY=VALUE`; the value is TOML, or else a text."""
    path, equals, text = assignment.partition("=")
    stage, *keys = path.strip().split(".")
    if not equals or not keys or not all(keys):
        raise ConfigError(
            f"`overrides`: {assignment!r} is not STAGE.KEY=VALUE, such as grpo.steps=50."
        )
    target = table.get(stage)
    if not isinstance(target, dict):
        stages = [name for name, value in table.items() if isinstance(value, dict)]
        hint = did_you_mean(stage, stages, f"Its stages: {', '.join(stages)}.")
        raise ConfigError(f"`overrides`: the recipe has no stage {stage!r}. {hint}")
    for key in keys[:-1]:
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            raise ConfigError(f"`overrides`: {key!r} of {path!r} is not a table.")
    try:
        target[keys[-1]] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        target[keys[-1]] = text


def _parse_recipe(name: str, table: JsonObject, output_dir: Path | None) -> Recipe:
    top_level = {key: value for key, value in table.items() if not isinstance(value, dict)}
    for key, value in top_level.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            raise ConfigError(
                f"A stage is a table in single brackets: [{key}], got [[{key}]]. For a second one "
                "of the kind, use another name and `command`."
            )
        if key not in _TOP_LEVEL:
            hint = did_you_mean(key, _TOP_LEVEL, f"Beside stages: {', '.join(_TOP_LEVEL)}.")
            raise ConfigError(f"Unknown key {key!r} at the top of the recipe. {hint}")
        expected = list if key == "next" else str
        if not isinstance(value, expected):
            raise ConfigError(f"{key!r} must be a {expected.__name__}, got {value!r}.")
    tables = {key: value for key, value in table.items() if key not in top_level}
    defaults = tables.pop(DEFAULTS, {})
    for reference in references_in(defaults):
        raise ConfigError(f"[{DEFAULTS}] cannot name stages, and has {{{reference}}}.")
    stages = [_parse_stage(key, value, [*tables]) for key, value in tables.items()]
    if not stages:
        raise ConfigError("The recipe has no stages. A stage is a table, such as [collect].")
    return Recipe(
        name,
        str(top_level.get("description", "")),
        output_dir or Path(top_level.get("output_dir", RUNS_DIR / name)).expanduser(),
        tuple(stages),
        defaults,
        tuple(map(str, top_level.get("next", ()))),
    )


def _parse_stage(name: str, options: JsonObject, order: list[str]) -> Stage:
    if name == EARLIER_DIR:
        raise ConfigError(
            f"{name!r} cannot be the name of a stage: results that were set aside are there."
        )
    if not _STAGE_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be the name of a stage: use letters, digits, _ and -.")
    command = str(options.get(_COMMAND_KEY, name))
    stage = Stage(
        name, command, {key: value for key, value in options.items() if key != _COMMAND_KEY}
    )
    before = order[: order.index(name)]
    for reference in stage.inputs:
        if reference not in before:
            hint = did_you_mean(reference, before, f"Before it: {', '.join(before) or 'none'}.")
            problem = "comes later" if reference in order else "is not a stage"
            if reference not in order:
                hint += f" To write braces, double them: {{{{{reference}}}}}."
            raise ConfigError(f"[{name}] names {{{reference}}}, which {problem}. {hint}")
    return stage
