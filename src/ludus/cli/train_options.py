"""The options that the commands of `ludus train` have in common, and what they mean."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.display.formatting import parse_duration
from ludus.errors import ConfigError

if TYPE_CHECKING:
    from ludus.train.config import Lora as LoraSettings
    from ludus.train.config import TrainConfig

_TRACKER_PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX")}
"""What has to be installed for a report, where that is not what its name says."""


class ExperimentTracker(StrEnum):
    TRACKIO = "trackio"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    NONE = "none"


Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="What `ludus curate` wrote, or a file of rows.")
]
Model = Annotated[
    str, typer.Option("--model", "-m", help="smollm2, a folder, a .gguf file, or a Hub name.")
]
OutputDir = Annotated[
    Path, typer.Option("--output-dir", "-o", metavar="OUT", help="Where the model goes.")
]
Epochs = Annotated[
    float | None,
    typer.Option(help="How often every row is seen.", show_default="3 for sft, 1 for dpo"),
]
Steps = Annotated[
    int | None,
    typer.Option(help="Number of training steps.", show_default="as --epochs says"),
]
BatchSize = Annotated[
    int | None, typer.Option(help="Rows at once in each process.", show_default="8")
]
Accumulate = Annotated[int, typer.Option(help="Batches to a step.")]
LearningRate = Annotated[
    float | None, typer.Option(help="The highest one.", show_default="one that suits the model")
]
MaxLength = Annotated[
    int | None, typer.Option(help="Tokens of a row.", show_default="as the rows ask for")
]
Drop = Annotated[
    bool, typer.Option("--drop", help="Leave out rows of which nothing would be learned.")
]
Packing = Annotated[
    bool, typer.Option("--packing/--no-packing", help="Several short rows in one sequence.")
]
Beta = Annotated[
    float | None,
    typer.Option(help="How dear it is to move away from the model.", show_default="0.1"),
]
Lora = Annotated[bool, typer.Option("--lora", help="Train a small adapter, not all weights.")]
LoraRank = Annotated[int | None, typer.Option(help="Its rank.", show_default="16")]
LoraAlpha = Annotated[int | None, typer.Option(help="Its scale.", show_default="twice the rank")]
LoraDropout = Annotated[float | None, typer.Option(help="Its dropout.", show_default="0")]
LoraTargets = Annotated[
    str | None,
    typer.Option(help="The layers it is put on: q_proj,v_proj.", show_default="all linear ones"),
]
Merge = Annotated[
    bool | None,
    typer.Option(
        "--merge/--no-merge", help="A whole model, or the adapter alone.", show_default="merge"
    ),
]
GradientCheckpointing = Annotated[
    bool,
    typer.Option(
        "--gradient-checkpointing/--no-gradient-checkpointing",
        help="Slower, with much less memory.",
    ),
]
Precision = Annotated[
    str | None, typer.Option(help="bf16, fp16 or fp32.", show_default="by the device")
]
Device = Annotated[str | None, typer.Option(help="cuda, mps or cpu.", show_default="best")]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile", help="Let torch compile it.", show_default="by the device"
    ),
]
CheckpointEvery = Annotated[str, typer.Option(help="90s, 10m or 2h.")]
Seed = Annotated[int, typer.Option(help="The order of the rows, and dropout.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other field of TRL's config."),
]
ReportTo = Annotated[
    ExperimentTracker | None,
    typer.Option(help="Who keeps the curves.", show_default="trackio if installed"),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Begin anew, and replace the model that is there.")
]
PushToHub = Annotated[str | None, typer.Option("--push-to-hub", "-H", help="USER/NAME of a model.")]
Private = Annotated[bool, typer.Option(help="Make that model a private one.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines, for machines.")]


def build_train_config(
    *,
    checkpoint_every: str,
    assignments: list[str] | None,
    report_to: ExperimentTracker | None,
    lora: LoraSettings | None,
    **plain: Any,
) -> TrainConfig:
    """All options as the trainer's settings."""
    from ludus.train.config import TrainConfig

    return TrainConfig(
        **shared_config_fields(checkpoint_every, assignments, report_to), lora=lora, **plain
    )


def shared_config_fields(
    checkpoint_every: str, assignments: list[str] | None, report_to: ExperimentTracker | None
) -> dict[str, Any]:
    """Those settings of every method that an option says in words of its own."""
    from ludus.train.config import parse_assignments

    overrides = parse_assignments(assignments or ())
    if secret := next((key for key in overrides if key.endswith("hub_token")), None):
        raise ConfigError(f"--set {secret} would be written down. Set HF_TOKEN instead.")
    return {
        "checkpoint_every": parse_duration(checkpoint_every, "--checkpoint-every"),
        "overrides": overrides,
        "report_to": _resolve_tracker(report_to),
    }


def build_lora_config(
    enabled: bool,
    *,
    rank: int | None,
    alpha: int | None,
    dropout: float | None,
    targets: str | None,
    merge: bool | None,
) -> LoraSettings | None:
    """The adapter; what is said of one that is not wanted is a mistake, and not passed over."""
    from ludus.train.config import Lora

    names = tuple(name.strip() for name in (targets or "").split(",") if name.strip())
    said = {
        "rank": rank,
        "alpha": alpha,
        "dropout": dropout,
        "target_modules": names if targets is not None else None,
        "merge_adapter": merge,
    }
    given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    if enabled:
        return Lora(**given)
    if given:
        option = _lora_flag(*next(iter(given.items())))
        raise ConfigError(f"{option} says how an adapter is made. Add --lora, or leave it away.")
    return None


def _lora_flag(name: str, value: object) -> str:
    if name == "merge_adapter":
        return "--merge" if value else "--no-merge"
    return f"--lora-{name}"


def _resolve_tracker(asked: ExperimentTracker | None) -> str | None:
    if asked is None:
        return ExperimentTracker.TRACKIO.value if find_spec(ExperimentTracker.TRACKIO) else None
    if asked is ExperimentTracker.NONE:
        return None
    if not any(map(find_spec, _TRACKER_PACKAGES.get(asked.value, (asked.value,)))):
        raise ConfigError(f"--report-to {asked} needs a package: pip install {asked}")
    return asked.value
