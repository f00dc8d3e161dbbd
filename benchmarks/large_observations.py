"""Environments whose every observation is one megabyte, for `backpressure.py`."""

from __future__ import annotations

from ludus import ToolEnvironment, tool

OBSERVATION_BYTES = 1_000_000


class Instant(ToolEnvironment):
    """Answers at once, on the event loop of the server."""

    def reset(self, *, seed: int | None = None) -> str:
        return "Ready."

    @tool
    def look(self) -> str:
        """Look around."""
        return "x" * OBSERVATION_BYTES


class Threaded(Instant):
    """The same, stepped in threads."""

    blocking = True
