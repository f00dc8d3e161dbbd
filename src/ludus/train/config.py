"""How a model is trained: what a user may say, and what is taken where nothing is said.

Values only. The trainers' own fields, which `overrides` reach, are `ludus.train.overrides`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from typing import Any, Literal

from ludus.errors import ConfigError, did_you_mean

Method = Literal["sft", "dpo", "grpo"]
PRECISIONS = ("bf16", "fp16", "fp32")
DEFAULT_BATCH_SIZE = 8
"""Rows per step and process. Enough that a gradient is no single row's opinion, and little enough
for the memory of one GPU; `accumulate` makes it larger without more memory."""
DEFAULT_EPOCHS: Mapping[str, float] = {"sft": 3.0, "dpo": 1.0}
"""Preferences are learned at once: seen again, a pair is learned by heart."""
_BILLION = 1_000_000_000
_DEFAULT_LEARNING_RATES: Mapping[Method, tuple[float, float, float]] = {
    "sft": (2e-4, 2e-5, 2e-4),
    "dpo": (5e-6, 1e-6, 5e-6),
    "grpo": (5e-6, 1e-6, 2e-5),
}
"""For a small model, for one of a billion weights and more, and for an adapter."""
DEFAULT_GROUPS = 16
"""Tasks in a step of GRPO for which its rates are meant."""


@dataclass(frozen=True, slots=True)
class Lora:
    """A small adapter is trained instead of all weights."""

    rank: int = 16
    alpha: int | None = None
    """Twice the rank where nothing is said, so that another rank asks for no other rate."""
    dropout: float = 0.0
    targets: tuple[str, ...] | None = None
    """Names of the layers that it is put on; None: all linear ones but the output."""
    merge: bool = True
    """Write a whole model, with the adapter beside it; else the adapter alone."""

    def __post_init__(self) -> None:
        check_at_least("--lora-rank", self.rank, 1)
        if self.alpha is not None:
            check_at_least("--lora-alpha", self.alpha, 1)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"--lora-dropout {self.dropout} is no share: write 0 to 0.99.")
        if self.targets == ():
            raise ConfigError("--lora-targets names no layer. Leave it away for all linear ones.")

    @property
    def effective_alpha(self) -> int:
        return 2 * self.rank if self.alpha is None else self.alpha


@dataclass(frozen=True, slots=True)
class BaseTrainConfig:
    """What every method lets a user decide."""

    batch_size: int | None = None
    """Rows that go through the model at once in each process."""
    learning_rate: float | None = None
    """None: by method, size of the model and adapter; see `learning_rate_of`."""
    beta: float | None = None
    """How dear it is to move away from the base; None: by the method."""
    lora: Lora | None = None
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: slower, with much less memory."""
    precision: str | None = None
    """In which the sums are made (bf16, fp16, fp32); None: what the device is good at."""
    device: str | None = None
    checkpoint_every: float = 600.0
    """Seconds between checkpoints."""
    seed: int = 0
    report_to: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, such as `enable_thinking`, over those that the model was
    saved with. The trained model is saved with them."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TRL's config, by name; texts are read by the field's type."""

    def __post_init__(self) -> None:
        check_at_least("--batch-size", self.batch_size, 1)
        check_positive("--learning-rate", self.learning_rate)
        check_at_least("--checkpoint-every", self.checkpoint_every, 0)
        check_at_least("--seed", self.seed, 0)
        if self.precision is not None and self.precision not in PRECISIONS:
            hint = did_you_mean(self.precision, PRECISIONS, f"Write {', '.join(PRECISIONS)}.")
            raise ConfigError(f"--precision {self.precision} is unknown. {hint}")

    def as_json(self) -> dict[str, Any]:
        """As `training.json` holds them."""
        return {
            **asdict(self),
            "chat_template_kwargs": dict(self.chat_template_kwargs),
            "overrides": dict(self.overrides),
        }


@dataclass(frozen=True, slots=True)
class TrainConfig(BaseTrainConfig):
    """All that decides what SFT or DPO makes; the same settings over the same rows give the same.

    `batch_size` is `BATCH` where nothing is said, DPO's `beta` 0.1.
    """

    epochs: float | None = None
    """How often every row is seen; None: by the method, see `EPOCHS`."""
    steps: int | None = None
    """Number of training steps, instead of `epochs`."""
    accumulate: int = 1
    """Batches whose gradients are summed before the weights move."""
    max_length: int | None = None
    """Tokens of a row that are kept; None: as the data set says, or as the rows ask for."""
    drop: bool = False
    """Leave out rows of which nothing would be learned, instead of refusing to begin."""
    packing: bool = False
    """SFT: several short rows in one sequence, none of which sees another."""
    compile: bool | None = None

    def __post_init__(self) -> None:
        BaseTrainConfig.__post_init__(self)
        check_positive("--epochs", self.epochs)
        check_at_least("--steps", self.steps, 1)
        if self.epochs is not None and self.steps is not None:
            raise ConfigError("--epochs and --steps both say how long to train. Give one of them.")
        check_at_least("--accumulate", self.accumulate, 1)
        check_at_least("--max-length", self.max_length, 2)
        check_positive("--beta", self.beta)


def with_defaults(config: TrainConfig, method: Method) -> TrainConfig:
    """With what the method decides where nothing is said; what the other method has is refused."""
    if method == "dpo" and config.packing:
        raise ConfigError("--packing is for SFT: the two sides of a pair are compared row by row.")
    if method == "dpo" and config.compile:
        raise ConfigError("--compile is for SFT: pairs are compared as TRL does it.")
    if method == "sft" and config.beta is not None:
        raise ConfigError("--beta is for DPO, which weighs two sides. Leave it away for SFT.")
    if config.steps is not None:
        return config
    return replace(config, epochs=config.epochs or DEFAULT_EPOCHS[method])


def resolve_learning_rate(
    config: BaseTrainConfig, method: Method, parameters: int, *, groups: int = DEFAULT_GROUPS
) -> float:
    """The rate that was asked for, or one that suits the method and the model.

    A small model moves far in few steps and takes a high rate; one of a billion weights and more
    forgets under it. An adapter starts from zero and needs a high one at any size. DPO compares
    with the base: rates a hundredth of SFT's already part the two sides. A step of GRPO follows the
    luck of its few tasks, the less the more `groups` there are: small models are upset by it, and
    take a rate that rises with the root of them.
    """
    if config.learning_rate is not None:
        return config.learning_rate
    small, large, adapter = _DEFAULT_LEARNING_RATES[method]
    if config.lora is None and parameters >= _BILLION:
        return large
    return (small if config.lora is None else adapter) * sqrt(groups / DEFAULT_GROUPS)


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a mapping; the last of two wins no silent fight: both is a mistake."""
    found: dict[str, str] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise ConfigError(f"--set {text} is no assignment. Write --set key=value.")
        if key in found:
            raise ConfigError(f"--set {key} is given twice. Give it once.")
        found[key] = value.strip()
    return found


def check_at_least(option: str, value: float | None, minimum: int) -> None:
    if value is not None and not value >= minimum:
        raise ConfigError(f"{option} {value} is too little: {minimum} is the least.")


def check_positive(option: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise ConfigError(f"{option} {value} cannot be: write a number above 0.")
