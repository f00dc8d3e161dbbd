"""Groups: attempts at the same task, whose rewards are compared. Pure functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, TypeVar

from ludus.data.episode import Episode
from ludus.data.estimates import is_zero_variance
from ludus.data.files import stable_hash
from ludus.errors import RunError

Item = TypeVar("Item")


def split_into_groups(items: Sequence[Item], size: int) -> list[tuple[Item, ...]]:
    """Consecutive groups of `size` items."""
    return [tuple(items[at : at + size]) for at in range(0, len(items), size)]


def zero_variance_mask(rewards: Any, group_size: int) -> Any:
    """For each row of rewards (rows, parts), whether its group has zero variance in every part.

    NaN stands for a missing score.
    """
    import torch

    rows = [[None if isnan(value) else value for value in row] for row in rewards.tolist()]
    flags = [
        all(is_zero_variance(part) for part in zip(*group, strict=True))
        for group in split_into_groups(rows, group_size)
    ]
    return torch.tensor(flags, device=rewards.device).repeat_interleave(group_size)


def group_prompt_digest(episode: Episode) -> int | None:
    """Digest of the prompt, which all members of a group must share.

    The prompt is all messages before the model's first; None if there is only a system prompt.
    """
    prompt = []
    for message in episode.messages:
        if message.role == "assistant":
            break
        prompt.append(message.model_dump_json(exclude_none=True))
    if all(message.role == "system" for message in episode.messages):
        return None
    return stable_hash("\n".join(prompt))


@dataclass(slots=True)
class SeedCheck:
    """Checks that all members of a group got the same task.

    An environment that ignores its seed gives every member another task, and the comparison of
    their rewards means little. That is an error, or with `allow_unseeded` a warning given once.
    """

    allow_unseeded: bool = False
    warn: Callable[[str], None] = warnings.warn
    _warned: bool = False

    def __call__(
        self, prompts: Sequence[int | None], names: Sequence[str], size: int
    ) -> dict[str, float]:
        """Check prompt digests and environment names, ordered by group.

        Returns the metric `unseeded` (share of groups with different tasks) if that is allowed.
        """
        groups = split_into_groups(list(zip(prompts, names, strict=True)), size)
        # Members without a prompt failed before they saw their task.
        unseeded = [
            group[0][1] for group in groups if len({prompt for prompt, _ in group} - {None}) > 1
        ]
        if unseeded and not self.allow_unseeded:
            raise RunError(
                f"{unseeded[0]} shows different tasks for the same seed, so that attempts cannot "
                "be compared. Make its reset draw everything from the seed, or train on it anyway "
                "with `allow_unseeded`."
            )
        if unseeded and not self._warned:
            self._warned = True
            self.warn(
                f"{unseeded[0]} shows different tasks for the same seed: groups compare attempts "
                "at different tasks, so that advantages depend on the luck of the task"
            )
        share = len(unseeded) / len(groups)
        return {"unseeded": share} if self.allow_unseeded else {}
