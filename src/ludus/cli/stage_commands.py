"""The stages of a recipe as commands: a stage's table has the options of its command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cyclopts import CycloptsError

from ludus.cli.command_line import stage_arguments
from ludus.cli.commands import STAGES
from ludus.cli.program import CONFIG, Flag, find_command, flags_of, run_with_table
from ludus.errors import ConfigError, did_you_mean
from ludus.recipe.recipe_file import Stage, substitute

_OUTPUTS = ("output_dir", "output")
MANAGED_KEYS = (*_OUTPUTS, "overwrite", "resume", "json", CONFIG)
"""Options that `ludus run` sets."""


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
        if self.path != "report":
            return folder / stage.name
        return folder / f"{stage.name}.{stage.options.get('format', 'html')}"

    def values(self, stage: Stage, outputs: Mapping[str, Path | None]) -> dict[str, Any]:
        """The stage's table with the folders that it names, and with its output folder."""
        folders = {name: str(path) for name, path in outputs.items() if path is not None}
        values: dict[str, Any] = substitute(stage.options, folders)
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

    def run(self, stage: Stage, outputs: Mapping[str, Path | None]) -> None:
        """Run the command with the values of the stage."""
        try:
            with stage_arguments(self.arguments(stage, outputs)):
                run_with_table(self.path, self.values(stage, outputs), f"[{stage.name}]")
        except CycloptsError as error:
            message = " ".join(str(error).split()).replace(f" from [{stage.name}]", "")
            raise ConfigError(f"[{stage.name}] {message}") from None


def stage_command(stage: Stage) -> StageCommand:
    """The command of a stage; raises for an unknown one, with the closest name."""
    if stage.command in STAGES:
        return _describe(STAGES[stage.command])
    hint = did_you_mean(stage.command, STAGES, f"A stage is one of {', '.join(STAGES)}.")
    if stage.command == "push":
        kinds = [name for name in STAGES if name.startswith("push")]
        raise ConfigError(f"[{stage.name}] needs `command`: {' or '.join(map(repr, kinds))}.")
    if stage.command == stage.name:
        hint += ' Another name needs `command`, such as command = "sft".'
    raise ConfigError(f"[{stage.name}]: there is no stage command {stage.command!r}. {hint}")


def fill_defaults(stage: Stage) -> Stage:
    """The stage with the defaults of its command for options that it does not set."""
    return replace(stage, options={**dict(_defaults(stage_command(stage))), **stage.options})


def _defaults(command: StageCommand) -> Iterator[tuple[str, Any]]:
    for key, flag in command.options.items():
        if isinstance(flag.default, str | int | float) and flag.default != "":
            yield key, flag.default


def _describe(path: str) -> StageCommand:
    flags = flags_of(find_command(path))
    options = {key: flag for key, flag in flags.items() if key not in MANAGED_KEYS}
    return StageCommand(path, options, next((key for key in _OUTPUTS if key in flags), None))
