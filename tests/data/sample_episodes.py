"""Small episodes for the tests of the files that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ludus.data.episode import Episode, StopReason, format_episode_id

RUN = "c0ffee00"


def attempt(index: int, reason: StopReason = StopReason.DONE, **more: Any) -> Episode:
    """The plan's episode at `index`; a fault leaves it unscored."""
    reward = None if reason.is_fault else 1.0
    fields = {"episode_id": format_episode_id(RUN, index), "reward": reward, **more}
    return Episode(stop_reason=reason, environment="echo", group_id="g", **fields)


def written(path: Path, *lines: Episode | bytes) -> Path:
    """A file of these lines, as they are."""
    path.write_bytes(
        b"".join(line if isinstance(line, bytes) else line.to_line() for line in lines)
    )
    return path
