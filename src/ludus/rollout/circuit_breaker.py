"""Circuit breaker: ends a run in which every episode breaks.

A broken episode is held back until another one succeeds: then the fault was its own, and it is
recorded. If none succeeds, the fault affects all episodes. Then none of them is recorded, so that
the same command plays them once the problem is solved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ludus.data.episode import Episode
from ludus.errors import InvalidAction, ProviderRefuses, RequestRefused, WorkersFailed

FATAL_FAULTS = frozenset({ProviderRefuses.__name__, WorkersFailed.__name__})
"""Faults that affect every episode, such as a wrong key or an unknown model."""
PERMANENT_FAULTS = FATAL_FAULTS | {InvalidAction.__name__, RequestRefused.__name__}
"""Faults that a retry does not solve."""
NO_SUCCESS_TIMEOUT_S = 600.0
NO_SUCCESS_FAULT_LIMIT = 3
"""So many faults end the run once there was no success for `NO_SUCCESS_TIMEOUT_S`."""


class CircuitBreaker:
    """Counts consecutive faults.

    Faults come faster than successes. So `limit` faults in a row end the run only after all
    episodes that were active then have ended without a success, too. `has_succeeded` says whether
    an earlier start of the run had a success. `action` is what is done with an episode, for errors.
    """

    def __init__(
        self,
        limit: int = 20,
        *,
        has_succeeded: bool = False,
        action: str = "played",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = limit
        self.reason: str | None = None
        """Why the run has to end, once it has to."""
        self._held_back: list[Episode] = []
        self._deciding_episodes: set[str] | None = None
        """Active episodes whose end decides; None while there are fewer faults than the limit."""
        self._first_fault_at = 0.0
        self._has_succeeded = has_succeeded
        self._action = action
        self._clock = clock

    def record_success(self) -> list[Episode]:
        """Note a success. Returns the broken episodes that are to be recorded now."""
        self._has_succeeded = True
        return self._release()

    def record_fault(self, episode: Episode, active: Iterable[str] = ()) -> None:
        """Hold back a broken episode; `active` are the ids of the episodes in progress."""
        assert episode.error is not None
        if not self._held_back:
            self._first_fault_at = self._clock()
        self._held_back.append(episode)
        if episode.error.kind in FATAL_FAULTS:
            self.reason = episode.error.message
        timed_out = self._clock() - self._first_fault_at > NO_SUCCESS_TIMEOUT_S
        limit = NO_SUCCESS_FAULT_LIMIT if timed_out else self.limit
        if self._deciding_episodes is None and len(self._held_back) >= limit:
            self._deciding_episodes = set(active)
        self.record_end(episode.episode_id)

    def record_end(self, episode_id: str) -> None:
        """Note that an episode has ended, whether it succeeded, broke or was left unplayed."""
        if self._deciding_episodes is None or self.reason is not None:
            return
        self._deciding_episodes.discard(episode_id)
        if not self._deciding_episodes:
            count = len(self._held_back)
            self.reason = f"{count} episodes in a row broke, the last with: {self._last_fault()}"

    def finish(self) -> list[Episode]:
        """Note that no episode is left to play. Returns the ones that are still to be recorded."""
        if self._held_back and not self._has_succeeded and self.reason is None:
            self.reason = f"Not one episode could be {self._action}: {self._last_fault()}"
        return [] if self.reason else self._release()

    def _last_fault(self) -> str:
        error = self._held_back[-1].error
        assert error is not None
        return error.text

    def _release(self) -> list[Episode]:
        episodes, self._held_back, self._deciding_episodes = self._held_back, [], None
        return episodes
