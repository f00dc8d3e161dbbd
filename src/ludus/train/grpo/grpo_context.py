"""What a GRPO run needs, and what is known before environments are reached and weights loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.data.config import config_digest
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture
from ludus.environment.task_buckets import Bucket
from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.vision.processor import load_vision_processor
from ludus.scoring.reward_functions import RewardFunctions
from ludus.train.context import TrainContext, load_training_tokenizer
from ludus.train.distributed import Distributed
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.reward_plot import plot_rewards
from ludus.train.grpo.trl_grpo_config import build_trl_grpo_config
from ludus.train.output.record import EnvironmentRecord, TrainingRecord
from ludus.train.progress import TrainProgress
from ludus.train.resume import NON_DECISIVE_IN_GRPO, decisive_config


@dataclass(frozen=True)
class GRPOContext(TrainContext):
    """A run of GRPO."""

    config: GRPOConfig
    environments: Mixture
    rewards: RewardFunctions
    buckets: tuple[Bucket, ...] = ()
    """Of a curriculum."""

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
        plot_rewards(log, file, title)


def build_grpo_context(
    environments: Mixture, model: str, out: Path, config: GRPOConfig, rewards: RewardFunctions, *,
    command: str | None, progress: TrainProgress, buckets: tuple[Bucket, ...] = (),
) -> GRPOContext:  # fmt: skip
    """Resolve the model, and build TRL's config; checks both."""
    model_ref, tokenizer = load_training_tokenizer(model, out, progress)
    # Agents call tools: chat formats without them are rejected here.
    chat_format = find_chat_format(tokenizer, chat_template_kwargs=config.chat_template_kwargs)
    vision = load_vision_processor(model_ref)
    trl_config = build_trl_grpo_config(config, out)
    launched = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    sharded = any(os.environ.get(name, "false") == "true" for name in launched)
    if sharded or trl_config.fsdp or trl_config.deepspeed:
        raise ConfigError(
            "A model that is sharded over processes (FSDP, DeepSpeed) cannot decode in one of "
            "them. Train without sharding, or with TRL's trainer and `environment_factory`."
        )
    return GRPOContext(
        method="grpo", model_ref=model_ref, out=out, config=config, trl_config=trl_config,
        tokenizer=tokenizer, chat_format=chat_format,
        distributed=Distributed.current(), progress=progress, command=command, vision=vision,
        environments=environments, rewards=rewards, buckets=buckets,
    )  # fmt: skip
