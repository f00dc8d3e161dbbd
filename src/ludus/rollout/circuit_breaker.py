"""Stop a run in which every episode breaks, without recording the broken episodes."""

from __future__ import annotations

from collections.abc import Iterable

from ludus.data.episode import Episode
from ludus.rollout.episode_loop import FATAL_FAULTS


class CircuitBreaker:
    """Stops a run in which every episode breaks.

    A broken episode is held back until another one succeeds: then the fault is not general, and it
    is recorded. If none succeeds, the fault affects all episodes. Then none of them is recorded, so
    that the same command plays them once the problem is solved.

    Faults come faster than successes. So `limit` faults in a row end the run only after all
    episodes that were active then have ended without a success, too.
    """

    def __init__(
        self, limit: int = 20, *, has_succeeded: bool = False, action: str = "played"
    ) -> None:
        self.reason: str | None = None
        """Why the run has to end, once it has to."""
        self._limit = limit
        self._has_succeeded = has_succeeded
        """Whether an episode has succeeded, also in an earlier start of the run."""
        self._action = action
        """What is done with an episode, as errors say it: `played`."""
        self._held_back: list[Episode] = []
        self._deciding_episodes: set[str] | None = None
        """Active episodes whose end decides; None while there are fewer faults than the limit."""

    def record_success(self) -> list[Episode]:
        """Note a success. Returns the broken episodes that are to be recorded now."""
        self._has_succeeded = True
        episodes, self._held_back, self._deciding_episodes = self._held_back, [], None
        return episodes

    def record_fault(self, episode: Episode, active: Iterable[str] = ()) -> None:
        """Hold back a broken episode; `active` are the ids of the episodes in progress."""
        assert episode.error is not None
        self._held_back.append(episode)
        if episode.error.kind in FATAL_FAULTS:
            self.reason = episode.error.message
        if self._deciding_episodes is None and len(self._held_back) >= self._limit:
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
        return [] if self.reason else self.record_success()

    def _last_fault(self) -> str:
        error = self._held_back[-1].error
        assert error is not None
        return error.text
