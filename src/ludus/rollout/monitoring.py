"""Status of active episodes, and the watchdog that reports what holds them up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Self

from ludus.data.episode import Usage

Side = Literal["model", "environment"]

MAX_NAMED = 3
"""Slow episodes that the watchdog names in one round; the others are counted."""


@dataclass(slots=True)
class EpisodeStatus:
    """What one attempt is waiting for, and where its time went."""

    episode_id: str
    environment: str = ""
    activity: str = "starting"
    side: Side = "environment"
    since: float = field(default_factory=time.monotonic)
    """When the present activity began."""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    usage: Usage = field(default_factory=Usage)
    """What the model has used so far."""
    seconds: dict[Side, float] = field(default_factory=lambda: {"model": 0.0, "environment": 0.0})

    @contextmanager
    def track(self, side: Side, activity: str) -> Iterator[None]:
        """While the block runs, the episode waits for this activity; its time is added up."""
        self.side, self.activity, self.since = side, activity, time.monotonic()
        try:
            yield
        finally:
            self.seconds[side] += self.elapsed()

    def elapsed(self) -> float:
        """Seconds since the present activity began."""
        return time.monotonic() - self.since


class Watchdog:
    """Warns about episodes that wait for long, and about a blocked event loop.

    It has a thread, so that it also works while the event loop is blocked.

    Args:
        statuses: the active episodes, by id; changed by the event loop while the thread reads.
        warn: called from the watchdog's thread.
        timeout: seconds after which a wait is reported.
        model_excused: while it returns True, waits for the model are not reported.
    """

    def __init__(
        self,
        statuses: Mapping[str, EpisodeStatus],
        warn: Callable[[str], None],
        *,
        timeout: float = 60.0,
        model_excused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._statuses = statuses
        self._warn = warn
        self._timeout = timeout
        self._model_excused = model_excused
        self._last_heartbeat = time.monotonic()
        self._warned: dict[tuple[str, float], float] = {}
        """By episode and begin of its activity: how long it had waited at the last warning."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ludus-watchdog", daemon=True)

    def heartbeat(self) -> None:
        """To be called regularly by the event loop: shows that it is not blocked."""
        self._last_heartbeat = time.monotonic()

    def __enter__(self) -> Self:
        self.heartbeat()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(min(1.0, self._timeout / 4)):
            self.check()

    def check(self) -> None:
        """Warn about each long wait once, and again whenever it has doubled."""
        # A copy in one step: the event loop adds and removes episodes meanwhile.
        statuses = list(self._statuses.values())
        stalled = time.monotonic() - self._last_heartbeat
        waits: dict[tuple[str, float], tuple[float, str]] = {}
        if stalled >= self._timeout:
            blocker = "something blocks it"
            if calls := [each for each in statuses if each.side == "environment"]:
                # The call that started last blocks the loop: none could start after it.
                last = max(calls, key=lambda status: status.since)
                blocker = (
                    f"{last.environment} blocks it in {last.activity} ({last.episode_id}); "
                    "set blocking = True in its class"
                )
            text = f"The event loop has not run for {stalled:.0f} s: {blocker}."
            waits["", self._last_heartbeat] = stalled, text
        else:
            excused = self._model_excused()
            for status in statuses:
                waited = status.elapsed()
                if waited > self._timeout and not (excused and status.side == "model"):
                    text = f"{status.episode_id} has waited {waited:.0f} s for {status.activity}."
                    waits[status.episode_id, status.since] = waited, text
        due = [key for key, (waited, _) in waits.items() if waited > 2 * self._warned.get(key, 0)]
        for key in due[:MAX_NAMED]:
            self._warn(waits[key][1])
        if len(due) > MAX_NAMED:
            self._warn(f"{len(due) - MAX_NAMED} more episodes have waited for as long.")
        warned = {key: waited for key, waited in self._warned.items() if key in waits}
        self._warned = warned | {key: waits[key][0] for key in due}
