"""All that is known of a GRPO run before its environments are reached and weights are loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ludus.data.config_diff import config_digest
from ludus.data.tool_schema import JsonObject
from ludus.data.training_log import EPISODES_FILE
from ludus.environment.mixture import Mixture
from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.vision.model_families import build_vision_processor
from ludus.train.context import TrainContext, load_tokenizer
from ludus.train.data.sample_task import sample_episode_task
from ludus.train.distributed import Distributed
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.rewards import RewardFunctions, parse_reward_functions
from ludus.train.grpo.trl_grpo_config import build_trl_grpo_config, rejected_fields
from ludus.train.output.record import NON_DECISIVE_IN_GRPO, decisive_config
from ludus.train.output.record_schema import EnvironmentRecord, TaskExample, TrainingRecord
from ludus.train.overrides import drop_redundant
from ludus.train.progress import TrainProgress


@dataclass(frozen=True)
class GRPOContext(TrainContext):
    """A training by trial."""

    config: GRPOConfig
    environments: Mixture
    rewards: RewardFunctions
    base_url: str | None
    token: str | None

    extensible = True

    @property
    def subject(self) -> str:
        return str(self.environments)

    def data_identity(self, previous: TrainingRecord) -> dict[str, Any]:
        return self.environment_record(())

    def environment_record(self, names: Sequence[str]) -> dict[str, Any]:
        """What is trained on, as `training.json` has it."""
        return {"environment": EnvironmentRecord(spec=self.subject, names=tuple(names))}

    @property
    def run_id(self) -> str:
        """The same for the same run, so that its episodes have the same names when it goes on, or
        is extended."""
        settings = decisive_config(self.config.as_json(), ignored=NON_DECISIVE_IN_GRPO | {"steps"})
        return config_digest(
            {**settings, "model": self.model_ref.name, "environment": self.subject}
        )

    def example_task(self) -> TaskExample | None:
        return sample_episode_task(self.out / EPISODES_FILE)

    def plot(self, log: Sequence[JsonObject], file: Path, title: str) -> None:
        from ludus.train.grpo.reward_plot import plot_rewards

        plot_rewards(log, file, title)


def build_context(
    environments: Mixture, model: str, out: Path, settings: GRPOConfig, *,
    base_url: str | None, token: str | None, command: str | None, watch: TrainProgress,
) -> GRPOContext:  # fmt: skip
    rewards = parse_reward_functions(settings.rewards)
    model_ref, tokenizer = load_tokenizer(model, out, watch)
    # Whoever acts needs tools: a dialect without them is refused here.
    dialect = find_chat_format(tokenizer, chat_template_kwargs=settings.chat_template_kwargs)
    eyes = build_vision_processor(model_ref, tokenizer, dialect)
    config = build_trl_grpo_config(settings, out)
    # For TRL's own loop, which renders prompts itself.
    config.chat_template_kwargs = dict(dialect.chat_template_kwargs) or None
    overrides = drop_redundant(settings.overrides, rejected_fields(settings))
    settings = replace(settings, overrides=overrides)
    if eyes is not None:
        _check_vision_support(config)
    if settings.rollouts == "fast" or settings.eval_every:
        _check_not_sharded(config)
    return GRPOContext(
        method="grpo", out=out, config=settings, trl_config=config, distributed=Distributed.current(),
        progress=watch, command=command, environments=environments, rewards=rewards, vision=eyes,
        base_url=base_url, token=token, model_ref=model_ref, tokenizer=tokenizer,
        chat_format=dialect,
    )  # fmt: skip


def _check_vision_support(config: Any) -> None:
    """TRL scores the same episodes a second time for these, and would do so without pictures."""
    for name, usual in (("beta", 0.0), ("num_iterations", 1)):
        if getattr(config, name) != usual:
            raise ConfigError(
                f"{name} {getattr(config, name):g} is not for a model that sees pictures. Leave it "
                f"at {usual:g}."
            )


def _check_not_sharded(config: Any) -> None:
    """A model of which each process has a part cannot play by itself in any of them."""
    launched = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    sharded = any(os.environ.get(name, "false") == "true" for name in launched)
    if sharded or config.fsdp or config.deepspeed:
        raise ConfigError(
            "A model that is spread over several processes cannot play in one of them. Use "
            "--rollouts trl without --eval-every, or processes that each have the whole model."
        )
