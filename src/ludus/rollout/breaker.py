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

HOPELESS = frozenset({ProviderRefuses.__name__})
"""Faults that meet every episode alike: a wrong key, an unknown model."""
LASTING = HOPELESS | {InvalidAction.__name__, RequestRefused.__name__}
"""Faults that trying again does not mend."""
LONG = 600.0
"""Seconds without a success after which a few broken episodes are enough."""
FEW = 3


class Breaker:
    """Watches faults in a row.

    Faults are quicker than successes, so a row that is long enough ends the run only when all that
    was under way by then has ended without a success too. `played` tells whether something has
    worked in an earlier start.
    """

    def __init__(
        self,
        limit: int = 20,
        *,
        played: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = limit
        self.why: str | None = None
        """Why the run has to end; None while there is hope."""
        self._held: list[Episode] = []
        self._awaited: set[str] | None = None
        """Episodes whose end decides; None while the row is short."""
        self._since = 0.0
        self._worked = played
        self._clock = clock

    def succeeded(self) -> list[Episode]:
        """Something works. Returns the broken episodes that are now to be recorded."""
        self._worked = True
        return self._release()

    def failed(self, episode: Episode, under_way: Iterable[str] = ()) -> None:
        """An episode broke, while others are under way."""
        assert episode.error is not None
        if not self._held:
            self._since = self._clock()
        self._held.append(episode)
        if episode.error.kind in HOPELESS:
            self.why = episode.error.message
        enough = FEW if self._clock() - self._since > LONG else self.limit
        if self._awaited is None and len(self._held) >= enough:
            self._awaited = set(under_way)
        self.ended(episode.episode_id)

    def ended(self, episode_id: str) -> None:
        """An episode is over, in whatever way."""
        if self._awaited is None or self.why is not None:
            return
        self._awaited.discard(episode_id)
        if not self._awaited:
            last = _words(self._held[-1])
            self.why = f"{len(self._held)} episodes in a row broke, the last with: {last}"

    def finished(self) -> list[Episode]:
        """Nothing is left to play. Returns what is still to be recorded."""
        if self._held and not self._worked and self.why is None:
            self.why = f"Not one episode could be played: {_words(self._held[-1])}"
        return [] if self.why else self._release()

    def _release(self) -> list[Episode]:
        held, self._held, self._awaited = self._held, [], None
        return held


def _words(episode: Episode) -> str:
    assert episode.error is not None
    return episode.error.words
