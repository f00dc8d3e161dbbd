"""Attempts at the same task, side by side: whether something can be learned from them.

Pure functions over rewards and episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ludus.data.episode import Episode, digest_of
from ludus.errors import RunError

SAME = 1e-8
"""Rewards that are no further apart are the same; sums of parts are not exact."""
Item = TypeVar("Item")


def in_groups(items: Sequence[Item], size: int) -> list[tuple[Item, ...]]:
    """Whole groups, one after the other."""
    return [tuple(items[at : at + size]) for at in range(0, len(items), size)]


def is_equal(rewards: Sequence[float | None]) -> bool:
    """Whether a group teaches nothing: all of its scored members did as well as one another."""
    scored = [reward for reward in rewards if reward is not None]
    return len(scored) < 2 or max(scored) - min(scored) <= SAME


def opening_of(episode: Episode) -> int | None:
    """What a member was shown before it first spoke, as a digest; None: it was shown nothing."""
    shown = []
    for message in episode.messages:
        if message.role == "assistant":
            break
        shown.append(message.model_dump_json(exclude_none=True))
    if all(message.role == "system" for message in episode.messages):
        return None
    return digest_of("\n".join(shown))


def refuse_unlike(openings: Sequence[int | None], size: int, names: Sequence[str]) -> None:
    """Members of a group are compared, so they must have had the same task."""
    pairs = zip(in_groups(openings, size), in_groups(names, size), strict=True)
    for shown, group in pairs:
        if len({each for each in shown if each is not None}) > 1:
            raise RunError(
                f"{group[0]} shows different tasks for the same seed, so that attempts at them "
                "cannot be compared. Let its reset draw everything from the seed."
            )
