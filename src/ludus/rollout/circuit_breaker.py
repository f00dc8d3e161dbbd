"""The circuit breaker: a run in which nothing works is ended, and nothing is recorded for it.

An episode that broke is held back until another one succeeds. Then it is known to be its own
misfortune, and is recorded. If none does, the fault was everybody's: those episodes stay to be
played, and the same command goes on once the trouble is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ludus.data.episode import Episode
from ludus.errors import InvalidAction, ProviderRefuses, RequestRefused

FATAL_FAULTS = frozenset({ProviderRefuses.__name__})
"""Faults that meet every episode alike: a wrong key, an unknown model."""
PERMANENT_FAULTS = FATAL_FAULTS | {InvalidAction.__name__, RequestRefused.__name__}
"""Faults that trying again does not mend."""
NO_SUCCESS_TIMEOUT_S = 600.0
"""Seconds without a success after which a few broken episodes are enough."""
NO_SUCCESS_FAULT_LIMIT = 3


class CircuitBreaker:
    """Watches faults in a row.

    Faults are quicker than successes, so a row that is long enough ends the run only when all that
    was under way by then has ended without a success too. `played` tells whether something has
    worked in an earlier start.
    """

    def __init__(
        self,
        limit: int = 20,
        *,
        has_succeeded: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = limit
        self.reason: str | None = None
        """Why the run has to end; None while there is hope."""
        self._held_back: list[Episode] = []
        self._deciding_episodes: set[str] | None = None
        """Episodes whose end decides; None while the row is short."""
        self._first_fault_at = 0.0
        self._has_succeeded = has_succeeded
        self._clock = clock

    def record_success(self) -> list[Episode]:
        """Something works. Returns the broken episodes that are now to be recorded."""
        self._has_succeeded = True
        return self._release()

    def record_fault(self, episode: Episode, active: Iterable[str] = ()) -> None:
        """An episode broke, while others are under way."""
        assert episode.error is not None
        if not self._held_back:
            self._first_fault_at = self._clock()
        self._held_back.append(episode)
        if episode.error.kind in FATAL_FAULTS:
            self.reason = episode.error.message
        enough = (
            NO_SUCCESS_FAULT_LIMIT
            if self._clock() - self._first_fault_at > NO_SUCCESS_TIMEOUT_S
            else self.limit
        )
        if self._deciding_episodes is None and len(self._held_back) >= enough:
            self._deciding_episodes = set(active)
        self.record_end(episode.episode_id)

    def record_end(self, episode_id: str) -> None:
        """An episode is over, in whatever way."""
        if self._deciding_episodes is None or self.reason is not None:
            return
        self._deciding_episodes.discard(episode_id)
        if not self._deciding_episodes:
            last = _fault_text(self._held_back[-1])
            self.reason = f"{len(self._held_back)} episodes in a row broke, the last with: {last}"

    def finish(self) -> list[Episode]:
        """Nothing is left to play. Returns what is still to be recorded."""
        if self._held_back and not self._has_succeeded and self.reason is None:
            self.reason = f"Not one episode could be played: {_fault_text(self._held_back[-1])}"
        return [] if self.reason else self._release()

    def _release(self) -> list[Episode]:
        held, self._held_back, self._deciding_episodes = self._held_back, [], None
        return held


def _fault_text(episode: Episode) -> str:
    assert episode.error is not None
    return episode.error.text
