"""Tasks as the rows that TRL trains on: each row is one task, which a group's members share.

They are the tasks that `collect` plays under the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    """So many tasks of an environment or a mix, with the columns prompt, seed and environment.

    What the environment shows first is put at the end of the prompt by TRL, when it has reset it.
    """
    from datasets import Dataset

    if count < 1:
        raise ConfigError(f"There must be at least one task to train on, not {count}.")
    mix = parse_mixture(environment) if isinstance(environment, str) else environment
    plan = Plan("tasks", mix, seed=seed)
    rows = {
        "prompt": [prompt_messages(system_prompt)] * count,
        "seed": [plan[number].seed for number in range(count)],
        "environment": [plan.spec_of(number) for number in range(count)],
    }
    return Dataset.from_dict(rows)


def prompt_messages(system_prompt: str | None) -> list[dict[str, Any]]:
    """What stands before the first observation, with an empty place for it."""
    words: list[Mapping[str, Any]] = [{"role": "user", "content": ""}]
    before = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return [dict(message) for message in (*before, *words)]
