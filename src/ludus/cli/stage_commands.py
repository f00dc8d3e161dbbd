"""The stages of a recipe as commands: their options are those that the commands declare."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ludus.cli.flag_names import find_command
from ludus.errors import ConfigError, did_you_mean
from ludus.recipe.recipe_file import Stage, substitute

_COMMAND_PATHS = {
    "collect": ("collect",),
    "curate": ("curate",),
    **{method: ("train", method) for method in ("sft", "dpo", "tutor", "grpo")},
    "eval": ("eval",),
    "report": ("report",),
}
_PUSH = "push"
MANAGED_KEYS = ("overwrite", "resume", "json", "help")
"""Options that `ludus run` sets itself, beside the output folder."""


@dataclass(frozen=True, slots=True)
class StageOption:
    """An option or argument of a command."""

    key: str
    """In recipes: `num_episodes` for --num-episodes."""
    flag: str
    """Empty for an argument, which has a position."""
    off_flag: str
    is_switch: bool
    is_repeatable: bool
    is_json: bool
    default: Any = None

    def words(self, value: Any) -> Iterator[str]:
        """The words of a command line that give the option this value."""
        if self.is_switch:
            if not isinstance(value, bool):
                raise ConfigError(f"{self.key} must be true or false, got {value!r}.")
            flag = self.flag if value else self.off_flag
            yield from [flag] if flag else []
        elif self.is_repeatable:
            for item in self.items(value):
                yield from self._with_flag(_to_text(item))
        elif isinstance(value, list) or (isinstance(value, Mapping) and not self.is_json):
            raise ConfigError(f"{self.key} takes one value, got {value!r}.")
        else:
            yield from self._with_flag(_to_text(value))

    def items(self, value: Any) -> list[Any]:
        """The values as a list; a table is JSON, or becomes a list of KEY=VALUE."""
        if isinstance(value, Mapping) and not self.is_json:
            return [f"{key}={_to_text(item)}" for key, item in value.items()]
        return value if isinstance(value, list) else [value]

    def _with_flag(self, text: str) -> list[str]:
        if not self.flag:
            return [text]
        # In one word, so that a value may begin with a dash.
        return [f"{self.flag}={text}"] if text.startswith("-") else [self.flag, text]


@dataclass(frozen=True, slots=True)
class StageCommand:
    """A command that a stage can run."""

    path: tuple[str, ...]
    options: Mapping[str, StageOption]
    output: StageOption | None
    """The option that takes the output folder."""
    click_command: Any

    def output_path(self, stage: Stage, folder: Path) -> Path | None:
        if self.output is None:
            return None
        if self.path[-1] != "report":
            return folder / stage.name
        return folder / f"{stage.name}.{stage.options.get('format', 'html')}"

    def arguments(self, stage: Stage, outputs: Mapping[str, Path | None]) -> list[str]:
        """The command line of a stage, without `ludus`."""
        folders = {name: str(path) for name, path in outputs.items() if path is not None}
        options = substitute(stage.options, folders)
        # Arguments come first, in the order of their declaration.
        arguments = [key for key, option in self.options.items() if not option.flag]
        ordered = [key for key in arguments if key in options]
        ordered += [key for key in options if key not in arguments]
        words = [*self.path]
        for key in ordered:
            words += self.options[key].words(options[key])
        if self.output is not None:
            words += [self.output.flag, folders[stage.name]]
        # Other commands resume, or raise OtherSettings; `curate` is quick, and does neither.
        return [*words, "--overwrite"] if self.path[-1] == "curate" else words


def stage_command(stage: Stage) -> StageCommand:
    """The command of a stage; raises for an unknown one, with the closest name."""
    commands = stage_commands()
    if stage.command in commands:
        return commands[stage.command]
    known = ", ".join(commands)
    hint = did_you_mean(stage.command, commands, f"A stage is one of {known}.")
    if stage.command == _PUSH:
        kinds = [name for name in commands if name.startswith(_PUSH)]
        raise ConfigError(f"[{stage.name}] needs `command`: {' or '.join(map(repr, kinds))}.")
    if stage.command == stage.name:
        hint += ' Another name needs `command`, such as command = "sft".'
    raise ConfigError(f"[{stage.name}]: there is no stage command {stage.command!r}. {hint}")


@cache
def stage_commands() -> dict[str, StageCommand]:
    """All commands of stages by their name in recipes, in the order of the loop."""
    paths = dict(_COMMAND_PATHS)
    paths |= {f"{_PUSH} {kind}": (_PUSH, kind) for kind in find_command(_PUSH).commands}
    return {name: _describe(path) for name, path in paths.items()}


def fill_defaults(stage: Stage) -> Stage:
    """The stage with the defaults of its command for options that it does not set."""
    options = stage_command(stage).options.items()
    defaults = {key: option.default for key, option in options if option.default is not None}
    return replace(stage, options={**defaults, **stage.options})


def _describe(path: tuple[str, ...]) -> StageCommand:
    command = find_command(*path)
    options: dict[str, StageOption] = {}
    output = None
    for param in command.params:
        flags = [flag for flag in param.opts if flag.startswith("--")]
        option = StageOption(
            key=flags[0].removeprefix("--").replace("-", "_") if flags else param.name,
            flag=flags[0] if flags else "",
            off_flag=param.secondary_opts[0] if param.secondary_opts else "",
            is_switch=bool(getattr(param, "is_flag", False)),
            is_repeatable=bool(getattr(param, "multiple", False)) or param.nargs == -1,
            is_json="JSON" in (param.metavar or ""),
            default=param.default,
        )
        if "-o" in param.opts:
            output = option
        elif option.key not in MANAGED_KEYS:
            options[option.key] = option
    return StageCommand(path, options, output, command)


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    raise ConfigError(f"{value!r} is neither a text, a number, true, false nor a table.")
