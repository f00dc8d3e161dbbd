"""Options that `ludus train sft`, `dpo` and `grpo` share, and the config that they build."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.common_options import parse_duration
from ludus.errors import ConfigError

if TYPE_CHECKING:
    from ludus.train.config import Lora as LoraConfig
    from ludus.train.config import TrainConfig

_TRACKER_PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX")}
"""Packages of which one must be installed, where the tracker's own name is not the only one."""


class ExperimentTracker(StrEnum):
    TRACKIO = "trackio"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    NONE = "none"


Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="Folder of `ludus curate`, or a file of rows.")
]
Model = Annotated[
    str,
    typer.Option("--model", "-m", help="Model to train: smollm2, folder, .gguf file or Hub id."),
]
OutputDir = Annotated[
    Path, typer.Option("--output-dir", "-o", metavar="OUT", help="Folder for the trained model.")
]
Epochs = Annotated[
    float | None,
    typer.Option(help="Number of passes over the rows.", show_default="3 for sft, 1 for dpo"),
]
Steps = Annotated[
    int | None,
    typer.Option(
        help="Number of training steps; overrides --epochs.", show_default="from --epochs"
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Rows per forward pass and process.", show_default="8"),
]
GradientAccumulationSteps = Annotated[
    int, typer.Option(help="Batches accumulated per training step.")
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Peak learning rate.", show_default="depends on the model's size"),
]
MaxLength = Annotated[
    int | None,
    typer.Option(help="Maximum number of tokens per row.", show_default="depends on the rows"),
]
DropUntrainable = Annotated[
    bool,
    typer.Option(
        "--drop-untrainable", help="Drop rows without trainable tokens instead of failing."
    ),
]
Packing = Annotated[
    bool, typer.Option("--packing/--no-packing", help="Pack several short rows into one sequence.")
]
Beta = Annotated[float | None, typer.Option(help="DPO's beta.", show_default="0.1")]
Lora = Annotated[bool, typer.Option("--lora", help="Train a LoRA adapter instead of all weights.")]
LoraRank = Annotated[int | None, typer.Option(help="LoRA rank.", show_default="16")]
LoraAlpha = Annotated[int | None, typer.Option(help="LoRA alpha.", show_default="twice the rank")]
LoraDropout = Annotated[float | None, typer.Option(help="LoRA dropout.", show_default="0")]
LoraTargetModules = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Modules to adapt, such as q_proj,v_proj.",
        show_default="all linear layers",
    ),
]
MergeAdapter = Annotated[
    bool | None,
    typer.Option(
        "--merge-adapter/--no-merge-adapter",
        help="Write a merged model, or the LoRA adapter alone.",
        show_default="merge",
    ),
]
GradientCheckpointing = Annotated[
    bool,
    typer.Option(
        "--gradient-checkpointing/--no-gradient-checkpointing",
        help="Recompute activations: less memory, slower.",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(help="bf16, fp16 or fp32.", show_default="depends on the device"),
]
Device = Annotated[
    str | None,
    typer.Option(help="cuda, mps or cpu.", show_default="the fastest available"),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Compile the model with torch.compile.",
        show_default="depends on the device",
    ),
]
CheckpointEvery = Annotated[
    str, typer.Option(metavar="TIME", help="Time between checkpoints, such as 90s, 10m or 2h.")
]
Seed = Annotated[int, typer.Option(help="Random seed: order of the rows, dropout.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other field of TRL's config; repeatable."),
]
ReportTo = Annotated[
    ExperimentTracker | None,
    typer.Option(help="Experiment tracker.", show_default="trackio if installed"),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Start anew and replace an existing model.")
]
PushToHub = Annotated[
    str | None,
    typer.Option(
        "--push-to-hub", "-H", metavar="USER/NAME", help="Upload to this model on the Hub."
    ),
]


def build_train_config(
    *,
    checkpoint_every: str,
    overrides: list[str] | None,
    report_to: ExperimentTracker | None,
    **fields: Any,
) -> TrainConfig:
    """Build the config of SFT and DPO; `fields` are its other fields."""
    from ludus.train.config import TrainConfig

    return TrainConfig(**shared_config_fields(checkpoint_every, overrides, report_to), **fields)


def shared_config_fields(
    checkpoint_every: str, overrides: list[str] | None, report_to: ExperimentTracker | None
) -> dict[str, Any]:
    """Parse the options of every training method whose text differs from the config field."""
    from ludus.train.overrides import parse_override_assignments

    assignments = parse_override_assignments(overrides or ())
    if secret := next((key for key in assignments if key.endswith("hub_token")), None):
        raise ConfigError(
            f"--set {secret} would be stored in the training record. Set HF_TOKEN instead."
        )
    return {
        "checkpoint_every": parse_duration(checkpoint_every, "--checkpoint-every"),
        "overrides": assignments,
        "report_to": _tracker_option(report_to),
    }


def build_lora_config(
    enabled: bool,
    *,
    rank: int | None,
    alpha: int | None,
    dropout: float | None,
    target_modules: str | None,
    merge_adapter: bool | None,
) -> LoraConfig | None:
    """Build the LoRA config; its options are rejected without --lora."""
    from ludus.train.config import Lora

    names = None
    if target_modules is not None:
        names = tuple(name.strip() for name in target_modules.split(",") if name.strip())
    merge_flag = "--no-merge-adapter" if merge_adapter is False else "--merge-adapter"
    options: dict[str, tuple[str, Any]] = {
        "rank": ("--lora-rank", rank),
        "alpha": ("--lora-alpha", alpha),
        "dropout": ("--lora-dropout", dropout),
        "target_modules": ("--lora-target-modules", names),
        "merge_adapter": (merge_flag, merge_adapter),
    }
    set_options = {field: option for field, option in options.items() if option[1] is not None}
    if enabled:
        return Lora(**{field: value for field, (_, value) in set_options.items()})
    for flag, _ in set_options.values():
        raise ConfigError(f"{flag} needs --lora. Add it, or remove {flag}.")
    return None


def _tracker_option(tracker: ExperimentTracker | None) -> str | None:
    """The value of --report-to; by default trackio, if it is installed."""
    if tracker is None:
        installed = find_spec(ExperimentTracker.TRACKIO) is not None
        return ExperimentTracker.TRACKIO.value if installed else None
    if tracker is ExperimentTracker.NONE:
        return None
    packages = _TRACKER_PACKAGES.get(tracker.value, (tracker.value,))
    if not any(map(find_spec, packages)):
        raise ConfigError(f"--report-to {tracker} needs a package: pip install {tracker}")
    return tracker.value
