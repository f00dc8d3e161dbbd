"""What an episode is doing right now, for the deadline and the watchdog to name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from ludus.data.episode import Usage

Side = Literal["model", "environment"]


@dataclass(slots=True)
class EpisodeStatus:
    """One attempt, and where its time goes."""

    episode_id: str
    environment: str = ""
    activity: str = "starting"
    side: Side = "environment"
    since: float = field(default_factory=time.monotonic)
    usage: Usage = field(default_factory=Usage)
    """What the model has used so far."""
    seconds: dict[Side, float] = field(default_factory=lambda: {"model": 0.0, "environment": 0.0})

    @contextmanager
    def track(self, side: Side, activity: str) -> Iterator[None]:
        """While the block runs, this is what the episode waits for."""
        self.side, self.activity, self.since = side, activity, time.monotonic()
        try:
            yield
        finally:
            self.seconds[side] += time.monotonic() - self.since

    def elapsed(self) -> float:
        """How long the present thing has taken."""
        return time.monotonic() - self.since
