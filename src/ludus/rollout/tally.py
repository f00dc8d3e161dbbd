"""What a run has come to so far: counts, rewards, tokens, faults, speed."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from ludus.data.episode import Episode, Usage
from ludus.data.lines import Head
from ludus.data.recorded import Recorded, Totals

WINDOW = 20.0
"""Seconds over which the present speed is taken."""


@dataclass
class Tally:
    """Counts over the whole run, those of earlier starts included."""

    planned: int
    left: int
    """Episodes that are still to be played."""
    recorded: Recorded = field(default_factory=Recorded)
    active: int = 0
    known: int = 0
    """Attempts of which it is known what they cost."""
    fresh: int = 0
    """Recorded since this start."""
    faults: Counter[str] = field(default_factory=Counter)
    """Attempts that broke since this start, by kind; most of them went well the next time."""
    spent_before: Usage = field(default_factory=Usage)
    """What earlier starts have recorded."""
    spent_now: Usage = field(default_factory=Usage)
    """Of every attempt since this start, also of those that broke."""
    began: float = field(default_factory=time.monotonic)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    @classmethod
    def of(cls, recorded: Recorded, planned: int, *, retry_broken: bool = False) -> Tally:
        """Go on from what is recorded."""
        totals = recorded.totals
        return cls(
            planned=planned,
            left=sum(1 for _ in recorded.open_until(planned, retry_broken=retry_broken)),
            recorded=recorded,
            known=totals.episodes,
            spent_before=Usage(
                prompt_tokens=totals.prompt_tokens,
                completion_tokens=totals.completion_tokens,
                cost=totals.cost,
            ),
        )

    def add(self, episode: Episode, line: bytes = b"") -> None:
        """An episode was recorded, as this line of the journal."""
        self.recorded.add([Head.of(episode)])
        if self.recorded.checksum is not None:
            self.recorded.checksum = self.recorded.checksum.extend(line)
        self.fresh += 1
        self.left -= 1
        now = time.monotonic()
        if not self._recent or now - self._recent[-1][0] > 0.1:
            self._recent.append((now, self.fresh))

    def attempted(self, episode: Episode) -> None:
        """An attempt ended; it may be tried again."""
        self.known += 1
        self.spent_now += episode.usage
        if episode.error is not None:
            self.faults[episode.error.kind] += 1

    @property
    def totals(self) -> Totals:
        return self.recorded.totals

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def rate(self) -> float:
        """Episodes a second, lately."""
        now = time.monotonic()
        while len(self._recent) > 1 and now - self._recent[0][0] > WINDOW:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        since, before = self._recent[0] if len(self._recent) > 1 else (self.began, 0)
        return (self.fresh - before) / max(now - since, 1e-6)

    @property
    def seconds_left(self) -> float | None:
        rate = self.rate
        return self.left / rate if rate > 0 else None

    def summary(self) -> dict[str, Any]:
        """For `summary.json` and for machines."""
        totals = self.totals
        return {
            "planned": self.planned,
            "episodes": totals.episodes,
            "left": self.left,
            "complete": self.left == 0,
            "scored": totals.scored,
            "broken": totals.broken,
            "mean_reward": totals.mean,
            "reward_deviation": totals.deviation,
            "stop_reasons": {name: n for name, n in sorted(totals.stop_reasons.items()) if n},
            "usage": {
                "prompt_tokens": totals.prompt_tokens,
                "completion_tokens": totals.completion_tokens,
                "cost": totals.cost,
            },
        }
