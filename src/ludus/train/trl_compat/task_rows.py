"""Tasks as rows of a data set that TRL trains on: one row per task, shared by a group.

They are the tasks that `collect` plays under the same seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.environment.mixture import Mixture, parse_mixture
from ludus.errors import ConfigError
from ludus.rollout.loop import SYSTEM_PROMPT
from ludus.rollout.plan import Plan

if TYPE_CHECKING:
    from datasets import Dataset


def tasks(
    environment: str | Mixture,
    count: int,
    *,
    seed: int = 0,
    system_prompt: str | None = SYSTEM_PROMPT,
) -> Dataset:
    """Build `count` tasks with the columns prompt, seed and environment.

    The prompt ends with an empty user message: TRL appends the first observation to it after it
    has reset the environment.
    """
    from datasets import Dataset

    if count < 1:
        raise ConfigError(f"`count` must be positive, got {count}.")
    mixture = parse_mixture(environment) if isinstance(environment, str) else environment
    plan = Plan("tasks", mixture, seed=seed)
    prompt = [{"role": "system", "content": system_prompt}] if system_prompt else []
    prompt.append({"role": "user", "content": ""})
    rows = {
        "prompt": [prompt] * count,
        "seed": [plan[number].seed for number in range(count)],
        "environment": [plan.spec_of(number) for number in range(count)],
    }
    return Dataset.from_dict(rows)
