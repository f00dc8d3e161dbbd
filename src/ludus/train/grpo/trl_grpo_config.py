"""TRL's GRPOConfig for a run.

All episodes of a step are played at its start, so training is on-policy. Defaults that differ from
TRL's: the learning rate warms up for a few steps and stays constant, so that a run can be longer or
be cut off; gradients are clipped at 1; advantages are divided by the deviation of the batch,
because within a group tiny differences of partial credit would count as much as the difference
between failure and success.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError
from ludus.policy.device import choose_device
from ludus.rollout.episode_loop import DEFAULT_MAX_TURNS
from ludus.train import trl_config as common
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.policy_loss import PolicyLoss
from ludus.train.trl_config import common_trl_fields, construct_trl_config

MAX_WARMUP_STEPS = 10
CPU_BATCH_SIZE = 8
"""Default on a CPU: larger batches are not faster there and need more memory."""
_GROUPS_HINT = "use `groups`, `group_size` and `batch_size`"
_TASKS_HINT = "Ludus lays out the tasks"
MANAGED_FIELDS: Mapping[str, str] = {
    **common.MANAGED_FIELDS,
    **dict.fromkeys(
        ("num_generations", "generation_batch_size", "steps_per_generation",
         "gradient_accumulation_steps", "num_generations_eval"), _GROUPS_HINT,
    ),
    "max_steps": "use `steps`",
    "num_train_epochs": "use `steps`",
    **dict.fromkeys(("max_length", "max_completion_length"), "use `max_episode_tokens`"),
    "chat_template_kwargs": "use `chat_template_kwargs`",
    "max_tool_calling_iterations": "use `max_turns`",
    "temperature": "use `temperature`",
    "top_p": "use `top_p`",
    "top_k": "use `top_k`",
    "use_vllm": "use `vllm_mode`",
    "vllm_mode": "use `vllm_mode`",
    "reward_weights": "use `reward_funcs` with module:function=WEIGHT",
    **dict.fromkeys(("shuffle_dataset", "dataloader_drop_last", "ignore_data_skip"), _TASKS_HINT),
    **dict.fromkeys(("eval_strategy", "eval_steps", "eval_on_start"), "use `eval_every`"),
}  # fmt: skip
"""Fields that no run may override, with what to use instead."""
SAMPLING_FIELDS = ("min_p", "repetition_penalty", "generation_kwargs")
"""Sampling parameters that only TRL's generation and its vLLM have."""
GENERATION_FIELDS = (
    "cache_implementation", "ds3_gather_for_generation", "use_transformers_continuous_batching",
    "transformers_continuous_batching_config", "use_transformers_paged",
)  # fmt: skip
"""Parameters of TRL's own generation, which is not used."""


def build_trl_grpo_config(config: GRPOConfig, out: Path) -> Any:
    """TRL's config, except for the learning rate, which depends on the size of the model."""
    fields, managed = _grpo_fields(config, out), rejected_fields(config)
    trl_config = construct_trl_config("grpo", fields, config.overrides, managed)
    PolicyLoss.from_trl(trl_config)  # Raises for a loss that is not implemented.
    if config.vllm_mode and trl_config.vllm_tensor_parallel_size > 1:
        # With tensor parallelism, vLLM answers only if all ranks call it at the same time.
        raise ConfigError(
            "`overrides`: vllm_tensor_parallel_size must be 1, got "
            f"{trl_config.vllm_tensor_parallel_size}: ranks play episodes at their own pace, and "
            "vLLM needs all ranks in every call."
        )
    return trl_config


def _grpo_fields(config: GRPOConfig, out: Path) -> dict[str, Any]:
    return {
        **common_trl_fields(config, out),
        **_batch_fields(config),
        "max_completion_length": config.max_episode_tokens,
        "max_tool_calling_iterations": config.max_turns or DEFAULT_MAX_TURNS,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k or 0,
        "beta": config.beta or 0.0,
        "scale_rewards": "batch",
        "use_vllm": config.vllm_mode is not None,
        "vllm_mode": config.vllm_mode or "colocate",
        # Episodes are in `episodes.jsonl`.
        "log_completions": False,
    }


def rejected_fields(config: GRPOConfig) -> dict[str, str]:
    """TRL's fields that cannot be overridden: the managed ones, and those without effect here."""
    unused: dict[str, str] = {}
    unused |= dict.fromkeys(GENERATION_FIELDS, "Ludus does not use TRL's generation")
    if config.vllm_mode is None:
        unused |= dict.fromkeys(SAMPLING_FIELDS, "it takes effect only with `vllm_mode`")
        names = (name for name in config.overrides if name.startswith("vllm_"))
        unused |= dict.fromkeys(names, "it takes effect only with `vllm_mode`")
    return {**unused, **MANAGED_FIELDS}


def _batch_fields(config: GRPOConfig) -> dict[str, Any]:
    """How the episodes of a step are divided among processes and batches."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if config.vllm_mode == "server" and processes > 1:
        raise ConfigError(
            f"`vllm_mode` server supports one process, got {processes}. Use `vllm_mode` colocate."
        )
    episodes, remainder = divmod(config.episodes, processes)
    if remainder:
        raise ConfigError(
            f"{config.groups} groups of {config.group_size} cannot be divided evenly among "
            f"{processes} processes. Use another number of `groups`."
        )
    return {
        "max_steps": config.steps,
        "per_device_train_batch_size": episodes,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 1,
        "num_generations": config.group_size,
        "shuffle_dataset": False,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": min(MAX_WARMUP_STEPS, config.steps // 10),
        "logging_steps": 1,
        "eval_strategy": "no",
    }


def max_micro_batch_rows(config: GRPOConfig) -> int | None:
    """The maximum number of rows of a micro-batch; None: as many as fit into memory."""
    default = CPU_BATCH_SIZE if choose_device(config.device) == "cpu" else None
    return config.batch_size or default
