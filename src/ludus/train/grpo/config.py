"""TRL's GRPOConfig for a run: what the settings mean in its fields.

All of a step's episodes are played at its beginning, so the policy that learns is the one that
played. Where the settings say nothing: a constant rate after a short warm-up, because a run has no
end that is known beforehand to be the right one, and gradients clipped at 1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.errors import BadSetting
from ludus.train.configs import config_of, shared
from ludus.train.grpo.settings import GrpoSettings
from ludus.train.overrides import REFUSED as OF_ALL
from ludus.train.overrides import checked

WARM_UP = 10
_GROUPS = "Ludus lays out groups and steps: use --groups, --group-size and --batch-size"
_TASKS = "Ludus lays out the tasks"
REFUSED: Mapping[str, str] = {
    **OF_ALL,
    **dict.fromkeys(
        ("num_generations", "generation_batch_size", "steps_per_generation",
         "gradient_accumulation_steps", "num_generations_eval"), _GROUPS,
    ),
    "max_steps": "use --steps",
    "num_train_epochs": "use --steps",
    "max_completion_length": "use --max-tokens",
    "max_tool_calling_iterations": "use --max-turns",
    "temperature": "use --temperature",
    "top_p": "use --top-p",
    "top_k": "use --top-k",
    "use_vllm": "use --vllm",
    "vllm_mode": "use --vllm",
    "reward_weights": "use --reward module:function=WEIGHT",
    **dict.fromkeys(("shuffle_dataset", "dataloader_drop_last", "ignore_data_skip"), _TASKS),
    **dict.fromkeys(("eval_strategy", "eval_steps", "eval_on_start"), "use --eval-every"),
}  # fmt: skip


def grpo_config(settings: GrpoSettings, out: Path) -> Any:
    """The config, but for the rate, which the weights decide."""
    import trl

    fields = {**shared(settings, out), **_steps(settings), **_played(settings)}
    return config_of(trl.GRPOConfig, fields, checked(trl.GRPOConfig, settings.overrides, REFUSED))


def _steps(settings: GrpoSettings) -> dict[str, Any]:
    """The episodes of a step, shared out among processes and batches."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if settings.vllm == "server" and processes > 1:
        raise BadSetting("--vllm server serves one process. Use --vllm colocate with several.")
    mine, left = divmod(settings.episodes, processes)
    if left:
        raise BadSetting(
            f"{settings.groups} groups of {settings.group_size} cannot be shared out evenly among "
            f"{processes} processes. Use other --groups."
        )
    batch = settings.batch_size or mine
    batches, left = divmod(mine, batch)
    if left:
        raise BadSetting(
            f"--batch-size {batch} does not divide the {mine} episodes of a step in each process. "
            f"Use one that does, such as {_divisor(mine, batch)}."
        )
    return {
        "max_steps": settings.steps,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": batches,
        "steps_per_generation": batches,
        "num_generations": settings.group_size,
        "shuffle_dataset": False,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": min(WARM_UP, settings.steps // 10),
        "logging_steps": 1,
        "eval_strategy": "no",
    }


def _divisor(number: int, at_most: int) -> int:
    return next(size for size in range(min(at_most, number), 0, -1) if number % size == 0)


def _played(settings: GrpoSettings) -> dict[str, Any]:
    return {
        "max_completion_length": settings.max_tokens,
        "max_tool_calling_iterations": settings.max_turns,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k or 0,
        "beta": settings.beta or 0.0,
        "use_vllm": settings.vllm is not None,
        "vllm_mode": settings.vllm or "colocate",
        # What is scored beside a group's own members is nobody's baseline.
        "log_completions": False,
    }
