"""TRL's GRPOConfig for a run: what the settings mean in its fields.

All of a step's episodes are played at its beginning, so the policy that learns is the one that
played. Where the settings say nothing: a rate that rises for some steps and falls from there to the
last, because most of a step's gradient is chance, and what chance has done is made good at a low
rate; and gradients clipped at 1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError
from ludus.policy.device import choose_device
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.overrides import MANAGED_FIELDS as OF_ALL
from ludus.train.overrides import parse_overrides
from ludus.train.trl_config import common_fields, construct_config, effective_values

MAX_WARMUP_STEPS = 10
CPU_BATCH_SIZE = 8
"""Rows that are trained on at once. More are no faster there, and take as much more memory."""
_GROUPS_HINT = "Ludus lays out groups and steps: use --groups, --group-size and --batch-size"
_TASKS_HINT = "Ludus lays out the tasks"
MANAGED_FIELDS: Mapping[str, str] = {
    **OF_ALL,
    **dict.fromkeys(
        ("num_generations", "generation_batch_size", "steps_per_generation",
         "gradient_accumulation_steps", "num_generations_eval"), _GROUPS_HINT,
    ),
    "max_steps": "use --steps",
    "num_train_epochs": "use --steps",
    "max_completion_length": "use --max-episode-tokens",
    "chat_template_kwargs": "use --chat-template-kwargs",
    "max_tool_calling_iterations": "use --max-turns",
    "temperature": "use --temperature",
    "top_p": "use --top-p",
    "top_k": "use --top-k",
    "use_vllm": "use --vllm",
    "vllm_mode": "use --vllm",
    "reward_weights": "use --reward module:function=WEIGHT",
    **dict.fromkeys(("shuffle_dataset", "dataloader_drop_last", "ignore_data_skip"), _TASKS_HINT),
    **dict.fromkeys(("eval_strategy", "eval_steps", "eval_on_start"), "use --eval-every"),
}  # fmt: skip
SAMPLING_FIELDS = ("min_p", "repetition_penalty", "generation_kwargs")
"""How tokens are drawn, where TRL or its vLLM draws them."""
GENERATION_FIELDS = (
    *SAMPLING_FIELDS, "cache_implementation", "ds3_gather_for_generation",
    "use_transformers_continuous_batching", "transformers_continuous_batching_config",
    "use_transformers_paged",
)  # fmt: skip
"""How TRL itself generates: nothing to rollouts of Ludus's."""


def build_trl_grpo_config(settings: GRPOConfig, out: Path) -> Any:
    """The config, but for the rate, which the weights decide."""
    import trl

    values = {
        **common_fields(settings, out),
        **_batch_fields(settings),
        **_rollout_fields(settings),
    }
    in_force = effective_values(settings, values, out)
    overrides = parse_overrides(
        trl.GRPOConfig, settings.overrides, rejected_fields(settings), in_force
    )
    config = construct_config(trl.GRPOConfig, values, overrides)
    _check_tensor_parallel(settings, config)
    if config.num_iterations < 1:
        raise ConfigError(
            f"--set num_iterations={config.num_iterations}: nothing would be learned from any "
            "episode. Use 1 or more."
        )
    return config


def rejected_fields(config: GRPOConfig) -> dict[str, str]:
    """Besides what no run lets one set: what would do nothing in this one."""
    import trl

    idle: dict[str, str] = {}
    if config.rollouts == "fast":
        heeded = SAMPLING_FIELDS if config.vllm else ()
        why = "Ludus generates by itself; with --rollouts trl it is heeded"
        idle |= dict.fromkeys((name for name in GENERATION_FIELDS if name not in heeded), why)
    if config.vllm is None:
        served = (field.name for field in fields(trl.GRPOConfig) if field.name.startswith("vllm_"))
        idle |= dict.fromkeys(served, "it is for --vllm")
    return {**idle, **MANAGED_FIELDS}


def _check_tensor_parallel(config: GRPOConfig, trl_config: Any) -> None:
    """A vLLM that is spread over processes answers only when all of them ask at the same time."""
    by_ludus = config.rollouts == "fast" or config.eval_every is not None
    if config.vllm and by_ludus and trl_config.vllm_tensor_parallel_size > 1:
        raise ConfigError(
            f"--set vllm_tensor_parallel_size={trl_config.vllm_tensor_parallel_size}: the processes "
            "play each at its own pace, and a vLLM that is spread over them needs all of them to "
            "ask at once. Leave it at 1, or use --rollouts trl without --eval-every."
        )


def _batch_fields(config: GRPOConfig) -> dict[str, Any]:
    """The episodes of a step, shared out among processes and batches."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if config.vllm == "server" and processes > 1:
        raise ConfigError("--vllm server serves one process. Use --vllm colocate with several.")
    mine, left = divmod(config.episodes, processes)
    if left:
        raise ConfigError(
            f"{config.groups} groups of {config.group_size} cannot be shared out evenly among "
            f"{processes} processes. Use other --groups."
        )
    batch = config.batch_size or _largest_divisor(mine, _default_batch_size(config, mine))
    batches, left = divmod(mine, batch)
    if left:
        raise ConfigError(
            f"--batch-size {batch} does not divide the {mine} episodes of a step in each process. "
            f"Use one that does, such as {_largest_divisor(mine, batch)}."
        )
    return {
        "max_steps": config.steps,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": batches,
        "steps_per_generation": batches,
        "num_generations": config.group_size,
        "shuffle_dataset": False,
        "lr_scheduler_type": "linear",
        "warmup_steps": min(MAX_WARMUP_STEPS, config.steps // 10),
        "logging_steps": 1,
        "eval_strategy": "no",
    }


def _default_batch_size(config: GRPOConfig, episodes: int) -> int:
    """Rows whose layers fit into the memory: a GPU says when they do not, and a CPU does not."""
    return CPU_BATCH_SIZE if choose_device(config.device) == "cpu" else episodes


def _largest_divisor(number: int, at_most: int) -> int:
    return next(size for size in range(min(at_most, number), 0, -1) if number % size == 0)


def _rollout_fields(config: GRPOConfig) -> dict[str, Any]:
    return {
        "max_completion_length": config.max_episode_tokens,
        "max_tool_calling_iterations": config.max_turns,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k or 0,
        "beta": config.beta or 0.0,
        "use_vllm": config.vllm is not None,
        "vllm_mode": config.vllm or "colocate",
        # What is scored beside a group's own members is nobody's baseline.
        "log_completions": False,
    }
