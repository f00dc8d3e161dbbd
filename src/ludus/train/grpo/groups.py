"""Attempts at the same task, side by side: whether something can be learned from them.

Pure functions over rewards and episodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ludus.data.episode import Episode, digest_64
from ludus.errors import RunError

Item = TypeVar("Item")


def split_into_groups(items: Sequence[Item], size: int) -> list[tuple[Item, ...]]:
    """Whole groups, one after the other."""
    return [tuple(items[at : at + size]) for at in range(0, len(items), size)]


def prompt_digest(episode: Episode) -> int | None:
    """What a member was shown before it first spoke, as a digest; None: it was shown nothing."""
    shown = []
    for message in episode.messages:
        if message.role == "assistant":
            break
        shown.append(message.model_dump_json(exclude_none=True))
    if all(message.role == "system" for message in episode.messages):
        return None
    return digest_64("\n".join(shown))


@dataclass(slots=True)
class SeedCheck:
    """Members of a group are compared, so they must have had the same task.

    An environment that ignores its seed gives each member another one. That is refused, or where
    it is allowed, a warning is given once.
    """

    allow_unseeded: bool = False
    warn: Callable[[str], None] = warnings.warn
    _warned: bool = False

    def __call__(
        self, prompts: Sequence[int | None], names: Sequence[str], size: int
    ) -> dict[str, float]:
        """The share of groups with different tasks, as the log has it where that is allowed."""
        groups = zip(split_into_groups(prompts, size), split_into_groups(names, size), strict=True)
        unseeded = [members[0] if _prompts_differ(shown) else None for shown, members in groups]
        name = next((each for each in unseeded if each is not None), None)
        if name is not None and not self.allow_unseeded:
            raise RunError(
                f"{name} shows different tasks for the same seed, so that attempts at them cannot "
                "be compared. Let its reset draw everything from the seed, or train on it all the "
                "same with --allow-unseeded (in Python allow_unseeded=True)."
            )
        if name is not None and not self._warned:
            self._warned = True
            self.warn(
                f"{name} shows different tasks for the same seed: groups compare attempts at "
                "different tasks, so that part of every advantage is the luck of the task"
            )
        share = sum(each is not None for each in unseeded) / len(unseeded)
        return {"unseeded": share} if self.allow_unseeded else {}


def _prompts_differ(shown: Sequence[int | None]) -> bool:
    return len({each for each in shown if each is not None}) > 1
