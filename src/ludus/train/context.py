"""All that is known of a run before its rows are read and its weights are loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import ChatFormat, find_chat_format_with_fallback
from ludus.policy.fingerprint import fingerprint
from ludus.policy.model_ref import ModelKind, ModelRef, resolve_model
from ludus.policy.tokenizer import load_tokenizer_from
from ludus.policy.vision.model_families import build_vision_processor
from ludus.policy.vision.processor import VisionProcessor
from ludus.train.config import BaseTrainConfig, Method, TrainConfig
from ludus.train.data.loading import TrainingData
from ludus.train.data.sample_task import sample_row_task
from ludus.train.distributed import Distributed
from ludus.train.output.loss_plot import plot_loss
from ludus.train.output.metadata import config_json, device_names
from ludus.train.output.record_schema import ChatFormatInfo, TaskExample, TrainingRecord
from ludus.train.output.training_folder import TOKENS_DIR, check_model_outside
from ludus.train.overrides import drop_redundant
from ludus.train.progress import TrainProgress
from ludus.train.trl_config import build_trl_config


@dataclass(frozen=True)
class TrainContext(ABC):
    """One training, and what it is made with."""

    method: Method
    source: ModelRef
    out: Path
    config: BaseTrainConfig
    trl_config: Any
    tokenizer: Any
    dialect: ChatFormat
    distributed: Distributed
    progress: TrainProgress
    command: str | None
    vision: VisionProcessor | None
    """How images are shown to the model, where it sees."""
    extensible: ClassVar[bool] = False
    """Whether a finished run goes on when it is asked for more steps; its last checkpoint is kept
    for that."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """What it is trained on, in a word."""

    @abstractmethod
    def data_identity(self, there: TrainingRecord) -> dict[str, Any]:
        """What is trained on, as far as it decides whether a run that is there is this one."""

    @abstractmethod
    def plot(self, lines: Sequence[JsonObject], file: Path, title: str) -> None:
        """The picture of how it went."""

    @abstractmethod
    def example_task(self) -> TaskExample | None:
        """One of the tasks, for the card."""

    def save_processor(self) -> None:
        """Write what else the model's folder needs."""
        if self.vision is not None:
            self.vision.save(self.out)

    def record_fields(self, trained_on: Mapping[str, Any]) -> dict[str, Any]:
        """As `training.json` has it."""
        return {
            "kind": self.method,
            "command": self.command,
            "model": self.source.name,
            "weights": fingerprint(self.source.name),
            "base": self.source.name if self.source.kind is ModelKind.HUB else None,
            **trained_on,
            "sees": self.vision is not None,
            "dialect": ChatFormatInfo(
                name=self.dialect.name,
                origin=self.dialect.origin,
                chat_template_kwargs=dict(self.dialect.chat_template_kwargs),
            ),
            "settings": {**self.config.as_json(), "processes": self.distributed.world_size},
            "config": config_json(self.trl_config),
            "seeds": {"seed": self.trl_config.seed, "data_seed": self.trl_config.data_seed},
            "devices": device_names(str(self.trl_config.device), self.distributed.world_size),
        }


@dataclass(frozen=True)
class OfflineContext(TrainContext):
    """A training on rows that lie on the disk."""

    config: TrainConfig
    data: TrainingData

    @property
    def tokens_dir(self) -> Path:
        return self.out / TOKENS_DIR

    @property
    def subject(self) -> str:
        return self.data.name

    def data_identity(self, there: TrainingRecord) -> dict[str, Any]:
        # How many rows there are follows from their digest, and is known only when they are read.
        assert there.data is not None
        return {"data": there.data.model_copy(update={"digest": self.data.digest})}

    def example_task(self) -> TaskExample | None:
        return sample_row_task(self.data.train, self.method)

    def plot(self, lines: Sequence[JsonObject], file: Path, title: str) -> None:
        plot_loss(lines, file, title=title)


def build_context(
    method: Method, data: TrainingData, model: str, out: Path, settings: TrainConfig,
    command: str | None, watch: TrainProgress,
) -> OfflineContext:  # fmt: skip
    made_with = load_chat_parts(model, out, settings, watch)
    config = build_trl_config(method, settings, out)
    settings = replace(settings, overrides=drop_redundant(settings.overrides))
    eyes = build_vision_processor(made_with["source"], made_with["tokenizer"], made_with["dialect"])
    if eyes is not None and settings.packing:
        raise ConfigError("--packing is not for a model that sees images. Leave it away.")
    return OfflineContext(
        method=method, out=out, config=settings, trl_config=config, distributed=Distributed.current(),
        progress=watch, command=command, data=data, vision=eyes, **made_with,
    )  # fmt: skip


def load_chat_parts(
    model: str, out: Path, config: BaseTrainConfig, progress: TrainProgress
) -> dict[str, Any]:
    """Which model it is, and how it is spoken to."""
    source = resolve_model(model, notify=progress.say)
    check_model_outside(out, source)
    tokenizer = load_tokenizer_from(source)
    # Whether rows need tools that it does not know is seen on the rows.
    dialect = find_chat_format_with_fallback(
        tokenizer, chat_template_kwargs=config.chat_template_kwargs
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return {"source": source, "tokenizer": tokenizer, "dialect": dialect}
