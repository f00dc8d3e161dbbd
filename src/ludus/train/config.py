"""The config of SFT and DPO, the fields shared with GRPO, and defaults per method.

TRL's own config fields are set by `overrides`; see `ludus.train.overrides`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ludus.data.config_types import check_field_types
from ludus.errors import ConfigError, did_you_mean

Method = Literal["sft", "dpo", "grpo"]
PRECISIONS = ("bf16", "fp16", "fp32")
DEFAULT_BATCH_SIZE = 8
"""Large enough for a stable gradient, and small enough for the memory of one GPU;
`gradient_accumulation_steps` makes it larger without more memory."""
DEFAULT_EPOCHS: Mapping[str, float] = {"sft": 3.0, "dpo": 1.0}
"""DPO overfits when it sees a pair more than once."""
DEFAULT_GROUPS = 16
"""Groups per step of GRPO, for which its learning rates are meant."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Trains a LoRA adapter instead of all weights."""

    rank: int = 16
    alpha: int | None = None
    """None: twice the rank, so that the learning rate does not depend on the rank."""
    dropout: float = 0.0
    target_modules: tuple[str, ...] | None = None
    """Names of the layers with an adapter; None: all linear layers except the output."""
    merge_adapter: bool = True
    """Save the merged model, with the adapter beside it; otherwise the adapter alone."""

    def __post_init__(self) -> None:
        check_field_types(self)
        check_at_least("lora.rank", self.rank, 1)
        check_at_least("lora.alpha", self.alpha, 1)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"`lora.dropout` must be from 0 to below 1, got {self.dropout}.")
        if self.target_modules == ():
            raise ConfigError("`lora.target_modules` is empty. Leave it out for all linear layers.")

    @property
    def effective_alpha(self) -> int:
        return 2 * self.rank if self.alpha is None else self.alpha


@dataclass(frozen=True, slots=True)
class BaseTrainConfig:
    """The fields that all methods have."""

    batch_size: int | None = None
    """Rows per batch and process."""
    learning_rate: float | None = None
    """Peak learning rate; None: see `trl_config.resolve_learning_rate`."""
    beta: float | None = None
    """KL penalty coefficient; None: 0.1 for DPO, 0 for GRPO."""
    lora: Lora | None = None
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: slower, with much less memory."""
    precision: str | None = None
    """Precision of the computation (bf16, fp16 or fp32); None: bf16 where the device has it."""
    device: str | None = None
    checkpoint_every: float = 600.0
    """Seconds between two checkpoints."""
    seed: int = 0
    report_to: str | None = None
    """Experiment tracker."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, such as `enable_thinking`, on top of those that the model was
    saved with. The trained model is saved with them."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TRL's config by name. Strings are parsed by the type of the field."""

    def __post_init__(self) -> None:
        check_field_types(self)
        check_at_least("batch_size", self.batch_size, 1)
        check_positive("learning_rate", self.learning_rate)
        check_at_least("checkpoint_every", self.checkpoint_every, 0)
        check_at_least("seed", self.seed, 0)
        if self.precision is not None and self.precision not in PRECISIONS:
            hint = did_you_mean(self.precision, PRECISIONS, f"Use {', '.join(PRECISIONS)}.")
            raise ConfigError(f"Unknown `precision` {self.precision!r}. {hint}")

    def as_json(self) -> dict[str, Any]:
        """The fields as `training.json` holds them."""
        return {
            **asdict(self),
            "chat_template_kwargs": dict(self.chat_template_kwargs),
            "overrides": dict(self.overrides),
        }


@dataclass(frozen=True, slots=True)
class TrainConfig(BaseTrainConfig):
    """The config of SFT and DPO. The same config on the same rows gives the same model.

    `batch_size` defaults to `DEFAULT_BATCH_SIZE`.
    """

    epochs: float | None = None
    """Passes over the data; None: `DEFAULT_EPOCHS`."""
    steps: int | None = None
    """Number of training steps, instead of `epochs`."""
    gradient_accumulation_steps: int = 1
    """Batches per training step."""
    max_length: int | None = None
    """Longer rows are truncated to so many tokens; None: as measured by `ludus curate`, or chosen
    so that nearly all rows fit."""
    drop_untrainable: bool = False
    """Drop rows without loss, instead of raising."""
    packing: bool = False
    """SFT: pack several short rows into one sequence; they do not attend to each other."""
    compile: bool | None = None
    """SFT: compile the layers; None: where the device gains from it."""

    def __post_init__(self) -> None:
        BaseTrainConfig.__post_init__(self)
        check_positive("epochs", self.epochs)
        check_at_least("steps", self.steps, 1)
        if self.epochs is not None and self.steps is not None:
            raise ConfigError("Set either `epochs` or `steps`, not both.")
        check_at_least("gradient_accumulation_steps", self.gradient_accumulation_steps, 1)
        check_at_least("max_length", self.max_length, 2)
        check_positive("beta", self.beta)


def with_defaults(config: TrainConfig, method: Method) -> TrainConfig:
    """Fill in the defaults of the method; raise for fields that it does not have."""
    if method == "dpo" and config.packing:
        raise ConfigError("`packing` is for SFT only.")
    if method == "dpo" and config.compile:
        raise ConfigError("`compile` is for SFT only.")
    if method == "sft" and config.beta is not None:
        raise ConfigError("`beta` is for DPO only.")
    if config.steps is not None:
        return config
    return replace(config, epochs=config.epochs or DEFAULT_EPOCHS[method])


def check_at_least(name: str, value: float | None, minimum: int) -> None:
    """Raise if a field of a training config is below its minimum; None is allowed."""
    if value is not None and not value >= minimum:
        raise ConfigError(f"`{name}` must be at least {minimum}, got {value}.")


def check_positive(name: str, value: float | None) -> None:
    """Raise if a field of a training config is not positive and finite; None is allowed."""
    if value is not None and not 0 < value < float("inf"):
        raise ConfigError(f"`{name}` must be positive, got {value}.")
