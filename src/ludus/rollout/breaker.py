"""The circuit breaker: a run in which nothing works is ended, and nothing is recorded for it.

An episode that broke is held back until another one succeeds. Then it is known to be its own
misfortune, and is recorded. If none does, the fault was everybody's: those episodes stay to be
played, and the same command goes on once the trouble is over.
"""

from __future__ import annotations

from ludus.data.episode import Episode
from ludus.errors import InvalidAction, ProviderRefuses

HOPELESS = (ProviderRefuses.__name__, InvalidAction.__name__)
"""Kinds of fault that meet every episode alike, however often it is tried."""


class Breaker:
    """Watches faults in a row."""

    def __init__(self, limit: int = 20) -> None:
        self.limit = limit
        self.why: str | None = None
        """Why the run has to end; None while there is hope."""
        self._held: list[Episode] = []
        self._successes = 0

    def succeeded(self) -> list[Episode]:
        """Something works. Returns the broken episodes that are now to be recorded."""
        self._successes += 1
        return self._release()

    def failed(self, episode: Episode) -> None:
        self._held.append(episode)
        assert episode.error is not None
        if episode.error.kind in HOPELESS:
            self.why = episode.error.message
        elif len(self._held) >= self.limit:
            number = len(self._held)
            self.why = f"{number} episodes in a row broke, the last with: {_words(episode)}"

    def finished(self) -> list[Episode]:
        """Nothing is left to play. Returns what is still to be recorded."""
        if self._held and not self._successes and self.why is None:
            self.why = f"Not one episode could be played: {_words(self._held[-1])}"
        return [] if self.why else self._release()

    def _release(self) -> list[Episode]:
        held, self._held = self._held, []
        return held


def _words(episode: Episode) -> str:
    assert episode.error is not None
    return f"{episode.error.kind}: {episode.error.message}"
