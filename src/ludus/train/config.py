"""The config of SFT and DPO, the fields shared with GRPO, and defaults per method.

TRL's own config fields are set by `overrides`; see `ludus.train.trl_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from ludus.data.config import check_at_least, check_field_types, check_positive
from ludus.errors import ConfigError, did_you_mean
from ludus.options import Option, parse_assignments, parse_duration, parse_minutes, parse_settings

Method = Literal["sft", "dpo", "grpo"]
Tracker = Literal["trackio", "tensorboard", "wandb", "none"]
_TRACKER_PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "none": ("typing",)}
"""Packages of which one must be installed, if the tracker's own name is not the only one."""
Precision = Literal["bf16", "fp16", "fp32"]
DEFAULT_BATCH_SIZE = 8
"""Large enough for a stable gradient, and small enough for the memory of one GPU;
`gradient_accumulation_steps` makes it larger without more memory."""
DEFAULT_EPOCHS: Mapping[str, float] = {"sft": 3.0, "dpo": 1.0}
"""DPO overfits when it sees a pair more than once."""
DEFAULT_GROUPS = 16
"""Groups per step of GRPO, for which its learning rates are meant."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Trains a LoRA adapter instead of all weights. As text: `r=16,alpha=32`."""

    rank: int = 16
    alpha: int | None = None
    """None: twice the rank, so that the learning rate does not depend on the rank."""
    dropout: float = 0.0
    target_modules: tuple[str, ...] | None = None
    """Names of the layers with an adapter; None: all linear layers except the output."""
    merge_adapter: bool = True
    """Save the merged model, with the adapter beside it; otherwise the adapter alone."""

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Lora | None:
        """Parse `r=16`, `alpha=32`, `merge=false`, ...; `on` has the defaults."""
        values = parse_settings(texts)
        if values == {}:
            return cls()
        if values is None:
            return None
        names = {"r": "rank", "merge": "merge_adapter", "targets": "target_modules"}
        values = {names.get(name, name): value for name, value in values.items()}
        known = [each.name for each in fields(cls)]
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known, f"It has: {', '.join(known)}.")
                raise ConfigError(f"`lora` has no setting {name!r}. {hint}")
        if isinstance(modules := values.get("target_modules"), str | list):
            listed = modules.split("+") if isinstance(modules, str) else modules
            values["target_modules"] = tuple(filter(None, listed))
        return cls(**values)

    def __post_init__(self) -> None:
        check_field_types(self, prefix="lora.")
        check_at_least("lora.rank", self.rank, 1)
        check_at_least("lora.alpha", self.alpha, 1)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"`lora.dropout` must be from 0 to below 1, got {self.dropout}.")
        if self.target_modules == ():
            raise ConfigError("`lora.target_modules` is empty. Leave it out for all linear layers.")

    @property
    def effective_alpha(self) -> int:
        return 2 * self.rank if self.alpha is None else self.alpha


@dataclass(frozen=True)
class BaseTrainConfig:
    """The fields that all methods have."""

    batch_size: Annotated[
        int | None,
        Option("Optimization", aliases=("--per-device-train-batch-size",), default="8"),
    ] = None
    """Rows per forward pass and process."""
    learning_rate: Annotated[
        float | None, Option("Optimization", default="depends on the model's size")
    ] = None
    """Peak learning rate."""
    beta: Annotated[float | None, Option("Optimization", advanced=True)] = None
    """KL penalty coefficient; 0.1 for DPO, 0 for GRPO."""
    lora: Annotated[
        Lora | None, Option("LoRA", metavar="on|r=16,alpha=32", bare="on", combine=Lora.parse)
    ] = None
    """Train a LoRA adapter instead of all weights. Settings: r, alpha (twice r), dropout, targets
    (such as q_proj+v_proj; all linear layers) and merge (false: save the adapter alone)."""
    gradient_checkpointing: Annotated[bool, Option("Optimization", advanced=True)] = False
    """Recompute activations in the backward pass: slower, with much less memory."""
    precision: Annotated[
        Precision | None, Option("Optimization", hidden=True, default="depends on the device")
    ] = None
    """Precision of the computation."""
    device: Annotated[
        str | None, Option("Optimization", hidden=True, default="the fastest available")
    ] = None
    """cuda, mps or cpu."""
    minutes: Annotated[
        float | None, Option("Optimization", metavar="M", default="no limit", parse=parse_minutes)
    ] = None
    """Minutes after which training ends with the model so far; the same command resumes it."""
    checkpoint_every: Annotated[
        float, Option("Output", hidden=True, metavar="TIME", default="10m", parse=parse_duration)
    ] = 600.0
    """Time between two checkpoints: 90s, 10m or 2h."""
    seed: Annotated[int, Option("Optimization", advanced=True)] = 0
    """Random seed."""
    report_to: Annotated[
        Tracker | None, Option("Output", advanced=True, default="trackio if it is installed")
    ] = None
    """Experiment tracker."""
    chat_template_kwargs: Annotated[
        Mapping[str, Any],
        Option("Optimization", hidden=True, metavar="KEY=VALUE|JSON", combine=parse_assignments),
    ] = field(default_factory=dict)
    """Arguments of the chat template, such as enable_thinking, on top of the ones saved with the
    model. The trained model is saved with them."""
    overrides: Annotated[
        Mapping[str, Any],
        Option("Optimization", name="set", metavar="KEY=VALUE", combine=parse_assignments),
    ] = field(default_factory=dict)
    """Any other setting: of this command, or of TRL's config; repeatable."""

    def __post_init__(self) -> None:
        check_field_types(self)
        check_at_least("batch_size", self.batch_size, 1)
        check_positive("learning_rate", self.learning_rate)
        check_positive("minutes", self.minutes)
        check_at_least("checkpoint_every", self.checkpoint_every, 0)
        check_at_least("seed", self.seed, 0)
        if self.report_to is not None:
            packages = _TRACKER_PACKAGES.get(self.report_to, (self.report_to,))
            if not any(map(find_spec, packages)):
                raise ConfigError(
                    f"`report_to` {self.report_to} needs a package: pip install {self.report_to}"
                )
        if secret := next((key for key in self.overrides if key.endswith("hub_token")), None):
            raise ConfigError(
                f"`overrides`: {secret} would be stored in the training record. Set HF_TOKEN."
            )

    @property
    def tracker(self) -> str:
        """The experiment tracker; by default trackio, if it is installed."""
        return self.report_to or ("trackio" if find_spec("trackio") else "none")

    def as_json(self) -> dict[str, Any]:
        """The fields as `training.json` holds them."""
        return {
            **asdict(self),
            "chat_template_kwargs": dict(self.chat_template_kwargs),
            "overrides": dict(self.overrides),
        }


@dataclass(frozen=True)
class TrainConfig(BaseTrainConfig):
    """The config of SFT and DPO. The same config on the same rows gives the same model.

    `batch_size` defaults to `DEFAULT_BATCH_SIZE`.
    """

    epochs: Annotated[float | None, Option("Optimization", default="3 for sft, 1 for dpo")] = None
    """Passes over the data."""
    steps: Annotated[
        int | None, Option("Optimization", aliases=("--max-steps",), default="from --epochs")
    ] = None
    """Number of training steps, instead of `epochs`."""
    gradient_accumulation_steps: Annotated[int, Option("Optimization", hidden=True)] = 1
    """Batches per training step."""
    max_length: Annotated[int | None, Option("Limits", default="so that nearly all rows fit")] = (
        None
    )
    """Maximum number of tokens per row; longer rows are truncated."""
    drop_untrainable: Annotated[bool, Option("Limits", hidden=True)] = False
    """Drop rows without loss, instead of failing."""
    compile: Annotated[
        bool | None, Option("Optimization", hidden=True, default="if the device gains from it")
    ] = None
    """SFT: compile the layers."""

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
    if method == "dpo" and config.compile:
        raise ConfigError("`compile` is for SFT only.")
    if method == "sft" and config.beta is not None:
        raise ConfigError("`beta` is for DPO only.")
    if config.steps is not None:
        return config
    return replace(config, epochs=config.epochs or DEFAULT_EPOCHS[method])
