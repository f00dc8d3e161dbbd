"""Check a recipe before anything starts: keys, values, and options that exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ludus.cli.command_line import check_only
from ludus.cli.flag_names import name_flags
from ludus.cli.stage_commands import MANAGED_KEYS, StageCommand, stage_command
from ludus.errors import ConfigError, LudusError, MissingCredentials, did_you_mean
from ludus.policy import smollm2
from ludus.recipe.recipe_file import DEFAULTS, Recipe, Stage


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

    Each command of a stage ends at `end_if_checking`, before it reads or writes anything.
    Candidates of an evaluation must exist: a known model stands in for those still to be trained.
    Returns by stage which keys or logins are missing: a stage that is done needs none.
    """
    from ludus.cli.main import app

    missing = {}
    for stage in recipe.stages:
        stand_ins = dict.fromkeys(outputs, Path(smollm2.NAME)) if stage.command == "eval" else {}
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


def _check_key(stage: Stage, key: str, command: StageCommand) -> None:
    if key in command.options:
        return
    name = " ".join(command.path)
    if key in MANAGED_KEYS or (command.output is not None and key == command.output.key):
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
