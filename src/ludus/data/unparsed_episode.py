"""Episodes of other processes, which are passed on as lines: to parse all of one takes 0.1 ms."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, cast

from ludus.data.episode import Episode, StopReason, Usage
from ludus.data.episode_head import EpisodeHead, parse_head

_NO_USAGE = Usage()


def episode_from_line(line: bytes) -> Episode:
    """The episode of a line, which is parsed when more than its outcome is needed."""
    head = parse_head(line, Path("episode"), 1)
    if head is None or StopReason(head.stop_reason).is_fault:
        return Episode.from_line(line)
    return cast(Episode, _UnparsedEpisode(line, head))


class _UnparsedEpisode:
    """Has the outcome of an episode without faults, and parses its line for other attributes."""

    error = None
    broken = False

    def __init__(self, line: bytes, head: EpisodeHead) -> None:
        self._line = line
        self.episode_id = head.episode_id
        self.attempt = head.attempt
        self.reward = head.reward
        self.group_id = head.group_id
        self.stop_reason = StopReason(head.stop_reason)
        if head.prompt_tokens == head.completion_tokens == 0 and head.cost is None:
            self.usage = _NO_USAGE

    def to_line(self) -> bytes:
        return self._line

    @cached_property
    def _episode(self) -> Episode:
        return Episode.from_line(self._line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._episode, name)
