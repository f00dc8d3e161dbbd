"""The stages of a recipe as commands: their options are those that the commands declare."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import typer

from ludus.cli.command_line import check_only
from ludus.cli.flag_names import name_flags
from ludus.errors import ConfigError, LudusError, MissingCredentials, did_you_mean
from ludus.policy.smollm2 import NAME as STAND_IN_MODEL
from ludus.recipe.recipe_file import DEFAULTS, Recipe, Stage, substitute

_COMMAND_PATHS = {
    "collect": ("collect",),
    "curate": ("curate",),
    **{method: ("train", method) for method in ("sft", "dpo", "tutor", "grpo")},
    "eval": ("eval",),
    "report": ("report",),
}
_PUSH = "push"
_MANAGED = ("overwrite", "resume", "json", "help")
"""Options that `ludus run` sets itself, beside the output folder."""


_CHECKED = ("collect", "curate", "sft", "dpo", "tutor", "grpo", "eval", "push env")
"""Commands that can check their options without running: they call `end_if_checking`."""


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

    def words(self, value: Any) -> Iterator[str]:
        """The words of a command line that give the option this value."""
        if self.is_switch:
            if not isinstance(value, bool):
                raise ConfigError(f"{self.key} must be true or false, got {value!r}.")
            flag = self.flag if value else self.off_flag
            yield from [flag] if flag else []
        elif self.is_repeatable:
            for item in self._items(value):
                yield from self._with_flag(_to_text(item))
        elif isinstance(value, list) or (isinstance(value, Mapping) and not self.is_json):
            raise ConfigError(f"{self.key} takes one value, got {value!r}.")
        else:
            yield from self._with_flag(_to_text(value))

    def _items(self, value: Any) -> list[Any]:
        """The values of a repeatable option; a table is a list of KEY=VALUE."""
        if isinstance(value, Mapping):
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
        suffix = {"md": ".md"}.get(str(stage.options.get("format")), ".html")
        return folder / f"{stage.name}{suffix}"

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


def apply_defaults(recipe: Recipe) -> Recipe:
    """Give every stage the defaults that its command has an option for."""
    used = set[str]()
    stages = []
    for stage in recipe.stages:
        options = stage_command(stage).options
        defaults = {key: value for key, value in recipe.defaults.items() if key in options}
        used |= defaults.keys()
        stages.append(replace(stage, options={**defaults, **stage.options}))
    for key in recipe.defaults:
        if key not in used:
            known = {option for stage in stages for option in stage_command(stage).options}
            hint = did_you_mean(key, known, "No stage has it.")
            raise ConfigError(f"[{DEFAULTS}] has an unknown option {key!r}. {hint}")
    return replace(recipe, stages=tuple(stages))


def check_recipe(recipe: Recipe) -> dict[str, Path | None]:
    """Check commands, keys and values of all stages; return the output path of each stage."""
    outputs: dict[str, Path | None] = {}
    for stage in recipe.stages:
        command = stage_command(stage)
        outputs[stage.name] = command.output_path(stage, recipe.output_dir)
        for key in stage.options:
            _check_key(stage, key, command)
    for stage in recipe.stages:
        _check_values(stage, stage_command(stage), outputs)
    return outputs


def check_options(recipe: Recipe, outputs: Mapping[str, Path | None]) -> dict[str, str]:
    """Let the commands of all stages check their options, before the first one runs.

    Candidates of an evaluation must exist: a known model stands in for those still to be trained.
    Returns by stage which keys or logins are missing: a stage that is done needs none.
    """
    from ludus.cli.main import app

    missing = {}
    for stage in recipe.stages:
        if stage.command not in _CHECKED:
            continue
        stand_ins = dict.fromkeys(outputs, Path(STAND_IN_MODEL)) if stage.command == "eval" else {}
        folders = {**outputs, **stand_ins, stage.name: outputs[stage.name]}
        words = stage_command(stage).arguments(stage, folders)
        try:
            with check_only():
                app(args=words, prog_name="ludus", standalone_mode=False)
        except MissingCredentials as error:
            missing[stage.name] = f"[{stage.name}] {name_flags(str(error))}"
        except LudusError as error:
            raise ConfigError(f"[{stage.name}] {name_flags(str(error))}") from None
        except Exception as error:
            raise _option_error(stage, error) from None
    return missing


@cache
def stage_commands() -> dict[str, StageCommand]:
    """All commands of stages by their name in recipes, in the order of the loop."""
    from ludus.cli.main import app

    root: Any = typer.main.get_command(app)
    commands = {}
    for name, path in _COMMAND_PATHS.items():
        if (command := _find_command(root, path)) is not None:
            commands[name] = _describe(path, command)
    for kind, command in root.commands[_PUSH].commands.items():
        commands[f"{_PUSH} {kind}"] = _describe((_PUSH, kind), command)
    return commands


def _find_command(root: Any, path: tuple[str, ...]) -> Any | None:
    for name in path:
        root = root.commands.get(name)
        if root is None:
            return None
    return root


def _describe(path: tuple[str, ...], command: Any) -> StageCommand:
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
            is_json=param.metavar == "JSON",
        )
        if "-o" in param.opts:
            output = option
        elif option.key not in _MANAGED:
            options[option.key] = option
    return StageCommand(path, options, output, command)


def _check_key(stage: Stage, key: str, command: StageCommand) -> None:
    if key in command.options:
        return
    name = " ".join(command.path)
    if key in _MANAGED or (command.output is not None and key == command.output.key):
        raise ConfigError(f"[{stage.name}] {key} is managed by `ludus run`: remove it.")
    hint = did_you_mean(key, command.options, f"`ludus {name} --help` lists them.")
    raise ConfigError(f"[{stage.name}] has no option {key!r}. {hint}")


def _check_values(stage: Stage, command: StageCommand, outputs: Mapping[str, Path | None]) -> None:
    """Parse the command line of a stage without running it."""
    try:
        words = command.arguments(stage, outputs)[len(command.path) :]
        command.click_command.make_context(command.path[-1], words)
    except ConfigError as error:
        raise ConfigError(f"[{stage.name}] {error}") from None
    except Exception as error:
        raise _option_error(stage, error) from None


def _option_error(stage: Stage, error: Exception) -> Exception:
    """An error of the command line's parser as that of a stage; any other is left as it is."""
    if not hasattr(error, "format_message"):
        return error
    return ConfigError(f"[{stage.name}] {error.format_message()}")


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    raise ConfigError(f"{value!r} is neither a text, a number, true, false nor a table.")
