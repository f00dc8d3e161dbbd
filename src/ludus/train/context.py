"""What a training run needs and what is known before data is read and weights are loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import ChatFormat, find_chat_format_with_fallback
from ludus.policy.device import device_names
from ludus.policy.load import load_tokenizer_from
from ludus.policy.model_ref import ModelKind, ModelRef, fingerprint, resolve_model
from ludus.policy.vision.processor import VisionProcessor, load_vision_processor
from ludus.train.config import BaseTrainConfig, Method, TrainConfig
from ludus.train.data.loading import TrainingData
from ludus.train.data.sample_task import sample_row_task
from ludus.train.distributed import Distributed
from ludus.train.output.loss_plot import plot_loss
from ludus.train.output.record_schema import ChatFormatInfo, TaskExample, TrainingRecord
from ludus.train.output.training_folder import TOKENS_DIR, check_model_outside
from ludus.train.overrides import drop_redundant
from ludus.train.progress import TrainProgress
from ludus.train.trl_config import build_trl_config, trl_config_json


@dataclass(frozen=True)
class TrainContext(ABC):
    """A training run: its method, model, config and output folder."""

    method: Method
    model_ref: ModelRef
    out: Path
    config: BaseTrainConfig
    trl_config: Any
    tokenizer: Any
    chat_format: ChatFormat
    distributed: Distributed
    progress: TrainProgress
    command: str | None
    vision: VisionProcessor | None
    """For models that take images."""
    extensible: ClassVar[bool] = False
    """Whether a finished run can be continued with more steps; its last checkpoint is kept then."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """What the model is trained on, for titles and messages."""

    @abstractmethod
    def data_identity(self, previous: TrainingRecord) -> dict[str, Any]:
        """The `data` or `environment` of the record, as far as it identifies the run."""

    @abstractmethod
    def plot(self, log: Sequence[JsonObject], file: Path, title: str) -> None:
        """Plot the log."""

    @abstractmethod
    def example_task(self) -> TaskExample | None:
        """A task for the model card."""

    def record_fields(self, trained_on: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of `TrainingRecord` that are known when the run starts."""
        return {
            "kind": self.method,
            "command": self.command,
            "model": self.model_ref.name,
            "weights": fingerprint(self.model_ref.name),
            "base": self.model_ref.name if self.model_ref.kind is ModelKind.HUB else None,
            **trained_on,
            "accepts_images": self.vision is not None,
            "dialect": ChatFormatInfo(
                name=self.chat_format.name,
                origin=self.chat_format.origin,
                chat_template_kwargs=dict(self.chat_format.chat_template_kwargs),
            ),
            "settings": {**self.config.as_json(), "processes": self.distributed.world_size},
            "config": trl_config_json(self.trl_config),
            "seeds": {"seed": self.trl_config.seed, "data_seed": self.trl_config.data_seed},
            "devices": device_names(str(self.trl_config.device), self.distributed.world_size),
        }


@dataclass(frozen=True)
class OfflineContext(TrainContext):
    """A run of SFT or DPO, on rows from disk or the Hub."""

    config: TrainConfig
    data: TrainingData

    @property
    def tokens_dir(self) -> Path:
        return self.out / TOKENS_DIR

    @property
    def subject(self) -> str:
        return self.data.name

    def data_identity(self, previous: TrainingRecord) -> dict[str, Any]:
        # The digest decides; the counts beside it are known only after tokenization.
        assert previous.data is not None
        return {"data": previous.data.model_copy(update={"digest": self.data.digest})}

    def example_task(self) -> TaskExample | None:
        return sample_row_task(self.data.train, self.method)

    def plot(self, log: Sequence[JsonObject], file: Path, title: str) -> None:
        plot_loss(log, file, title=title)


def build_context(
    method: Method, data: TrainingData, model: str, out: Path, config: TrainConfig, *,
    command: str | None, progress: TrainProgress,
) -> OfflineContext:  # fmt: skip
    """Resolve the model and build TRL's config; the first place where both are checked."""
    model_ref, tokenizer = load_tokenizer(model, out, progress)
    # Whether the rows need tools that the template cannot show is checked on the rows.
    chat_format = find_chat_format_with_fallback(
        tokenizer, chat_template_kwargs=config.chat_template_kwargs
    )
    trl_config = build_trl_config(method, config, out)
    vision = load_vision_processor(model_ref)
    if vision is not None and config.packing:
        raise ConfigError("`packing` is not supported for models that take images.")
    return OfflineContext(
        method=method, model_ref=model_ref, out=out,
        config=replace(config, overrides=drop_redundant(config.overrides)), trl_config=trl_config,
        tokenizer=tokenizer, chat_format=chat_format, distributed=Distributed.current(),
        progress=progress, command=command, vision=vision, data=data,
    )  # fmt: skip


def load_tokenizer(model: str, out: Path, progress: TrainProgress) -> tuple[ModelRef, Any]:
    """Find the model, which must not lie in the output folder, and load its tokenizer."""
    model_ref = resolve_model(model)
    check_model_outside(out, model_ref)
    tokenizer = load_tokenizer_from(model_ref)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model_ref, tokenizer
