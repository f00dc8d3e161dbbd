"""Names what hangs, from a thread: it still speaks when the event loop itself is held up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from ludus.rollout.episode_status import EpisodeStatus

MAX_NAMED = 3
"""How many of those that hang are named at once."""


class Watchdog:
    """Looks at what episodes are doing; `warn` is told, from another thread.

    While `excused` says so, the model's side may take its time.
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
        self._warned_stall = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ludus-watchdog", daemon=True)

    def heartbeat(self) -> None:
        """The event loop is alive."""
        self._last_heartbeat = time.monotonic()

    def __enter__(self) -> Self:
        self._last_heartbeat = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(min(1.0, self._timeout / 4)):
            self.check()

    def check(self) -> None:
        """Say what has taken too long, each thing once, and again when it has taken twice that."""
        held_up = time.monotonic() - self._last_heartbeat
        if held_up < self._timeout:
            self._warned_stall = 0.0
            self._warn_slow_episodes()
        elif held_up > 2 * self._warned_stall:
            self._warned_stall = held_up
            self._warn(
                f"Everything has stood still for {held_up:.0f} s: {self._describe_blocker()}."
            )

    def _warn_slow_episodes(self) -> None:
        present = list(self._statuses.values())
        excused = self._model_excused()
        late = {
            (activity.episode_id, activity.since): activity
            for activity in present
            if activity.elapsed() > self._timeout and not (excused and activity.side == "model")
        }
        self._warned = {key: told for key, told in self._warned.items() if key in late}
        news = [key for key in late if late[key].elapsed() > 2 * self._warned.get(key, 0.0)]
        for key in news[:MAX_NAMED]:
            slow = late[key]
            self._warn(f"{slow.episode_id} has waited {slow.elapsed():.0f} s for {slow.activity}.")
        if len(news) > MAX_NAMED:
            self._warn(f"{len(news) - MAX_NAMED} more episodes wait like that.")
        self._warned.update((key, late[key].elapsed()) for key in news)

    def _describe_blocker(self) -> str:
        """The environment whose call holds up the loop is the one that began last."""
        busy = [a for a in list(self._statuses.values()) if a.side == "environment"]
        if not busy:
            return "the event loop is held up"
        latest = max(busy, key=lambda activity: activity.since)
        return (
            f"{latest.environment} holds up the event loop in {latest.activity} "
            f"({latest.episode_id}); it should say blocking = True"
        )
