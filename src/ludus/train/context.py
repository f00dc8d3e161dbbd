"""What a training run needs and what is known before data is read and weights are loaded."""

from __future__ import annotations

import gc
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from ludus.data.config import config_digest
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture
from ludus.environment.task_buckets import Bucket
from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import ChatFormat, find_chat_format
from ludus.policy.device import device_names
from ludus.policy.hf_loading import suppress_hf_logging
from ludus.policy.load import load_tokenizer
from ludus.policy.model_ref import ModelKind, ModelRef, fingerprint_model, resolve_model
from ludus.policy.vision.processor import VisionProcessor, load_vision_processor
from ludus.scoring.reward_functions import RewardFunctions
from ludus.train.config import BaseTrainConfig, Method, TrainConfig
from ludus.train.data.training_data import TrainingData
from ludus.train.distributed import Distributed
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.trl_grpo_config import build_trl_grpo_config
from ludus.train.output.record import ChatFormatInfo, EnvironmentRecord, TrainingRecord
from ludus.train.output.training_folder import TENSORBOARD_DIR, TOKENS_DIR, check_model_outside
from ludus.train.output.training_plots import plot_loss, plot_rewards
from ludus.train.result import TrainProgress
from ludus.train.resume import NON_DECISIVE_IN_GRPO, decisive_config
from ludus.train.trl_config import build_trl_config, trl_config_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, TrainingArguments

_QUIET_LOGGERS = ("accelerate", "datasets", "peft", "torch", "trl")


@dataclass(frozen=True)
class TrainContext(ABC):
    """A training run: its method, model, config and output folder."""

    method: Method
    model_ref: ModelRef
    out: Path
    config: BaseTrainConfig
    trl_config: TrainingArguments
    tokenizer: PreTrainedTokenizerBase
    chat_format: ChatFormat
    distributed: Distributed
    progress: TrainProgress
    command: str | None
    vision: VisionProcessor | None
    """For models that take images."""
    started_at: float = field(default_factory=monotonic, kw_only=True)
    """When the call began; `minutes` counts from it."""
    extensible: ClassVar[bool] = False
    """Whether a finished run can be continued with more steps; its last checkpoint is kept then."""

    @property
    def deadline(self) -> float:
        """When the run must have ended, on the clock of `started_at`."""
        return inf if self.config.minutes is None else self.started_at + 60 * self.config.minutes

    @property
    @abstractmethod
    def subject(self) -> str:
        """What the model is trained on, for titles and messages."""

    @abstractmethod
    def data_identity(self, previous: TrainingRecord) -> JsonObject:
        """The `data` or `environment` of the record, as far as it identifies the run."""

    @abstractmethod
    def plot(self, log: Sequence[JsonObject], file: Path, title: str) -> None:
        """Plot the log."""

    def record_fields(self, trained_on: JsonObject) -> JsonObject:
        """The fields of `TrainingRecord` that are known when the run starts."""
        return {
            "kind": self.method,
            "command": self.command,
            "model": self.model_ref.name,
            "weights": fingerprint_model(self.model_ref.name),
            "base": self.model_ref.name if self.model_ref.kind is ModelKind.HUB else None,
            **trained_on,
            "accepts_images": self.vision is not None,
            "chat_format": ChatFormatInfo(
                name=self.chat_format.name,
                origin=self.chat_format.origin,
                chat_template_kwargs=dict(self.chat_format.chat_template_kwargs),
            ),
            "settings": {**self.config.as_json(), "processes": self.distributed.world_size},
            "config": trl_config_json(self.trl_config),
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

    def data_identity(self, previous: TrainingRecord) -> JsonObject:
        # The digest decides; the counts beside it are known only after tokenization.
        assert previous.data is not None
        return {"data": previous.data.model_copy(update={"digest": self.data.digest})}

    def plot(self, log: Sequence[JsonObject], file: Path, title: str) -> None:
        plot_loss(log, file, title=title)


@dataclass(frozen=True)
class GRPOContext(TrainContext):
    """A run of GRPO."""

    config: GRPOConfig
    environments: Mixture
    rewards: RewardFunctions
    buckets: tuple[Bucket, ...] = ()
    """Buckets of a curriculum."""

    extensible = True

    @property
    def subject(self) -> str:
        return str(self.environments)

    def data_identity(self, previous: TrainingRecord) -> dict[str, Any]:
        return self.environment_record(())

    def environment_record(self, names: Sequence[str]) -> dict[str, Any]:
        """The `environment` of the record; `names` are the environments' names in episodes."""
        return {"environment": EnvironmentRecord(spec=self.subject, names=tuple(names))}

    @property
    def run_id(self) -> str:
        """The prefix of episode ids; the same when the run is resumed or extended."""
        config = decisive_config(self.config.as_json(), ignored=NON_DECISIVE_IN_GRPO | {"steps"})
        identity = {"model": self.model_ref.name, "environment": self.subject}
        return config_digest({**config, **identity})

    def plot(self, log: Sequence[JsonObject], file: Path, title: str) -> None:
        plot_rewards(log, file, title=title)


def build_offline_context(
    method: Method, data: TrainingData, model: str, out: Path, config: TrainConfig, *,
    command: str | None, progress: TrainProgress, started_at: float,
) -> OfflineContext:  # fmt: skip
    """Resolve the model and build TRL's config; the first place where both are checked."""
    model_ref, tokenizer = load_training_tokenizer(model, out, progress)
    # Whether the rows need tools that the template cannot show is checked on the rows.
    chat_format = find_chat_format(
        tokenizer, require_tools=False, chat_template_kwargs=config.chat_template_kwargs
    )
    trl_config = build_trl_config(method, config, out)
    vision = load_vision_processor(model_ref)
    return OfflineContext(
        method=method, model_ref=model_ref, out=out,
        config=config, trl_config=trl_config, tokenizer=tokenizer, chat_format=chat_format,
        distributed=Distributed.current(), progress=progress, command=command, vision=vision,
        data=data, started_at=started_at,
    )  # fmt: skip


def build_grpo_context(
    environments: Mixture, model: str, out: Path, config: GRPOConfig, rewards: RewardFunctions, *,
    command: str | None, progress: TrainProgress, started_at: float,
    buckets: tuple[Bucket, ...] = (),
) -> GRPOContext:  # fmt: skip
    """Resolve the model, and build TRL's config; checks both."""
    model_ref, tokenizer = load_training_tokenizer(model, out, progress)
    # Agents call tools: chat formats without them are rejected here.
    chat_format = find_chat_format(tokenizer, chat_template_kwargs=config.chat_template_kwargs)
    vision = load_vision_processor(model_ref)
    trl_config = build_trl_grpo_config(config, out)
    check_sharding(trl_config, takes_images=vision is not None)
    return GRPOContext(
        method="grpo", model_ref=model_ref, out=out, config=config, trl_config=trl_config,
        tokenizer=tokenizer, chat_format=chat_format,
        distributed=Distributed.current(), progress=progress, command=command, vision=vision,
        environments=environments, rewards=rewards, buckets=buckets,
        started_at=started_at,
    )  # fmt: skip


def check_sharding(trl_config: TrainingArguments, *, takes_images: bool) -> None:
    """Raise unless GRPO can decode with weights that are sharded in this way."""
    used = {
        name for name in ("FSDP", "DEEPSPEED")
        if os.environ.get(f"ACCELERATE_USE_{name}", "false") == "true"
    }  # fmt: skip
    if not used and not trl_config.fsdp and not trl_config.deepspeed:
        return
    if used != {"FSDP"} or trl_config.fsdp or os.environ.get("FSDP_VERSION") != "2":
        raise ConfigError(
            "GRPO supports FSDP2 alone of the ways to divide a model's weights among processes. "
            "Launch it with `accelerate launch --use_fsdp --fsdp_version 2`."
        )
    if takes_images or trl_config.use_vllm:
        what = "A model that takes images" if takes_images else "`vllm_mode`"
        raise ConfigError(
            f"{what} cannot be combined with FSDP in GRPO. Use `accelerate launch --multi_gpu`."
        )
    # Every rank checks its decoder with the model's weights, before they are divided.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"


def load_training_tokenizer(
    model: str, out: Path, progress: TrainProgress
) -> tuple[ModelRef, PreTrainedTokenizerBase]:
    """Find the model, which must not lie in `out`, and load its tokenizer."""
    model_ref = resolve_model(model)
    check_model_outside(out, model_ref)
    tokenizer = load_tokenizer(model_ref)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model_ref, tokenizer


@contextmanager
def training_process(out: Path) -> Iterator[None]:
    """Silence progress bars, logs and warnings of libraries during training.

    By default TensorBoard logs would be written among the checkpoints, and removed with them.
    Everything is restored at the end.
    """
    import datasets

    folder_variable = "TENSORBOARD_LOGGING_DIR"
    variables = {
        "TQDM_DISABLE": "1",
        folder_variable: os.environ.get(folder_variable) or str(out / TENSORBOARD_DIR),
        # TRL warns that experimental features may change; its minor version is pinned for that.
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    before = {name: os.environ.get(name) for name in variables}
    levels = {name: logging.getLogger(name).level for name in _QUIET_LOGGERS}
    had_bars = not datasets.are_progress_bars_disabled()
    os.environ.update(variables)
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        with suppress_hf_logging():
            yield
    finally:
        gc.collect()
        if had_bars:
            datasets.enable_progress_bars()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
