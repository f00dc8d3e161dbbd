"""The stages of a recipe as commands: a stage's table has the options of its command.

A recipe is checked before its first stage starts: keys, values, options that exclude each other,
and the environments, models, data and functions that the stages name. Results of earlier stages
are left out: they need not exist yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import CycloptsError

from ludus.cli.command_line import replace_typed_command
from ludus.cli.commands import STAGES
from ludus.cli.flags import (
    CONFIG,
    Flag,
    find_command,
    flags_of,
    name_flags,
    run_with_table,
    to_texts,
)
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, LudusError, MissingCredentials, RunError, did_you_mean
from ludus.options import parse_assignments
from ludus.policy import smollm2
from ludus.recipe.recipe_file import DEFAULTS, Recipe, Stage, references_in, substitute

if TYPE_CHECKING:
    from ludus.train.config import Method

_OUTPUTS = ("output_dir", "output")
MANAGED_KEYS = (*_OUTPUTS, "overwrite", "resume", "json", CONFIG)
"""Options that `ludus run` sets."""
_TRAINERS: Mapping[str, Method] = {"sft": "sft", "dpo": "dpo", "tutor": "sft", "grpo": "grpo"}
"""The method of TRL that trains, by command."""


@dataclass(frozen=True, slots=True)
class StageCommand:
    """A command that a stage can run."""

    path: str
    options: Mapping[str, Flag]
    """Those that a recipe may set, by their keys."""
    output_key: str | None
    """The option that takes the output folder."""

    def output_path(self, stage: Stage, folder: Path) -> Path | None:
        if self.output_key is None:
            return None
        return folder / (f"{stage.name}.html" if self.path == "report" else stage.name)

    def values(self, stage: Stage, outputs: Mapping[str, Path | None]) -> JsonObject:
        """The stage's table with the folders that it names, and with its output folder."""
        folders = {name: str(path) for name, path in outputs.items() if path is not None}
        values: JsonObject = substitute(stage.options, folders)
        if self.output_key is not None:
            values[self.output_key] = folders[stage.name]
        # Other commands resume, or raise OtherSettings; `curate` is quick, and does neither.
        return {**values, "overwrite": True} if self.path == "curate" else values

    def arguments(self, stage: Stage, outputs: Mapping[str, Path | None]) -> list[str]:
        """The command line of a stage, without `ludus`."""
        values = self.values(stage, outputs)
        flags = flags_of(find_command(self.path))
        # Arguments come first, in the order of their declaration.
        keys = [key for key, flag in flags.items() if flag.positional and key in values]
        keys += [key for key in values if key not in keys]
        return [
            *self.path.split(),
            *(word for key in keys for word in flags[key].words(values[key])),
        ]

    def run(
        self, stage: Stage, outputs: Mapping[str, Path | None], *, only_checks: bool = False
    ) -> None:
        """Run the command with the values of the stage, or only check them."""
        try:
            with replace_typed_command(self.arguments(stage, outputs), only_checks=only_checks):
                run_with_table(self.path, self.values(stage, outputs), f"[{stage.name}]")
        except CycloptsError as error:
            message = " ".join(str(error).split()).replace(f" from [{stage.name}]", "")
            raise ConfigError(f"[{stage.name}] {message}") from None


def stage_command(stage: Stage) -> StageCommand:
    """The command of a stage; raises for an unknown one, with the closest name."""
    if stage.command in STAGES:
        path = STAGES[stage.command]
        flags = flags_of(find_command(path))
        options = {key: flag for key, flag in flags.items() if key not in MANAGED_KEYS}
        return StageCommand(path, options, next((key for key in _OUTPUTS if key in flags), None))
    hint = did_you_mean(stage.command, STAGES, f"A stage is one of {', '.join(STAGES)}.")
    if stage.command == "push":
        kinds = [name for name in STAGES if name.startswith("push")]
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
    """Check commands and keys of all stages; return the output path of each stage."""
    outputs: dict[str, Path | None] = {}
    for stage in recipe.stages:
        command = stage_command(stage)
        outputs[stage.name] = command.output_path(stage, recipe.output_dir)
        for key in stage.options:
            if key in MANAGED_KEYS:
                raise ConfigError(f"[{stage.name}] {key} is managed by `ludus run`: remove it.")
            if key not in command.options:
                listed = f"`ludus {command.path} --help-all` lists them."
                hint = did_you_mean(key, command.options, listed)
                raise ConfigError(f"[{stage.name}] has no option {key!r}. {hint}")
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
            with suppress(SystemExit):
                stage_command(stage).run(stage, folders, only_checks=True)
        except MissingCredentials as error:
            missing[stage.name] = f"[{stage.name}] {name_flags(str(error))}"
        except LudusError as error:
            message = name_flags(str(error)).removeprefix(f"[{stage.name}] ")
            raise ConfigError(f"[{stage.name}] {message}") from None
    return missing


def check_inputs(stages: Iterable[Stage]) -> None:
    """Raise for the first stage that names something which is not there."""
    from ludus.cli.common import resolve_run_path
    from ludus.data.hub import is_hub_id
    from ludus.environment.mixture import parse_mixture
    from ludus.policy.model_ref import check_model_name
    from ludus.scoring.reward_functions import import_reward_functions
    from ludus.train.data.training_data import open_data
    from ludus.train.trl_config import parse_overrides

    for stage in stages:
        try:
            for env in _named(stage, "env") if "base_url" not in stage.options else ():
                parse_mixture(env).check_installed()
            for name in _named(stage, "runs"):
                if not (path := resolve_run_path(name)).exists():
                    raise RunError(f"There is no run {path}.")
            if stage.command not in _TRAINERS:
                continue
            for name in _named(stage, "data"):
                if Path(name).expanduser().exists() or not is_hub_id(name):
                    open_data(name)
            for name in _named(stage, "model"):
                check_model_name(name)
            parse_overrides(_TRAINERS[stage.command], parse_assignments(_named(stage, "set")))
            import_reward_functions(_named(stage, "reward_func"), argument="reward_func")
        except LudusError as error:
            raise ConfigError(f"[{stage.name}] {name_flags(str(error))}") from error


def _named(stage: Stage, key: str) -> list[str]:
    """The texts of an option, without references to other stages."""
    if key not in stage_command(stage).options or key not in stage.options:
        return []
    return [text for text in to_texts(stage.options[key]) if not any(references_in(text))]
