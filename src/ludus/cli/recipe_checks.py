"""Check a recipe before anything starts: keys, values, and options that exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ludus.cli.command_line import check_only
from ludus.cli.program import name_flags
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
    """Check commands and keys of all stages; return the output path of each stage."""
    outputs: dict[str, Path | None] = {}
    for stage in recipe.stages:
        command = stage_command(stage)
        outputs[stage.name] = command.output_path(stage, recipe.output_dir)
        for key in stage.options:
            _check_key(stage, key, command)
    return outputs


def check_options(recipe: Recipe, outputs: Mapping[str, Path | None]) -> dict[str, str]:
    """Let the commands of all stages check their options, before the first one runs.

    Each command of a stage ends at `end_if_checking`, before it reads or writes anything.
    Candidates of an evaluation must exist: a known model stands in for those still to be trained.
    Returns by stage which keys or logins are missing: a stage that is done needs none.
    """
    missing = {}
    for stage in recipe.stages:
        stand_ins = dict.fromkeys(outputs, Path(smollm2.NAME)) if stage.command == "eval" else {}
        folders = {**outputs, **stand_ins, stage.name: outputs[stage.name]}
        try:
            with check_only(), suppress(SystemExit):
                stage_command(stage).run(stage, folders)
        except MissingCredentials as error:
            missing[stage.name] = f"[{stage.name}] {name_flags(str(error))}"
        except LudusError as error:
            message = name_flags(str(error)).removeprefix(f"[{stage.name}] ")
            raise ConfigError(f"[{stage.name}] {message}") from None
    return missing


def _check_key(stage: Stage, key: str, command: StageCommand) -> None:
    if key in command.options:
        return
    if key in MANAGED_KEYS:
        raise ConfigError(f"[{stage.name}] {key} is managed by `ludus run`: remove it.")
    hint = did_you_mean(key, command.options, f"`ludus {command.path} --help-all` lists them.")
    raise ConfigError(f"[{stage.name}] has no option {key!r}. {hint}")
