"""Names what hangs, from a thread: it still speaks when the event loop itself is held up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from ludus.rollout.activity import Activity

NAMED = 3
"""How many of those that hang are named at once."""


class Watchdog:
    """Looks at what episodes are doing; `warn` is told, from another thread.

    While `excused` says so, the model's side may take its time.
    """

    def __init__(
        self,
        activities: Mapping[str, Activity],
        warn: Callable[[str], None],
        *,
        patience: float = 60.0,
        excused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._activities = activities
        self._warn = warn
        self._patience = patience
        self._excused = excused
        self._beat = time.monotonic()
        self._named: dict[tuple[str, float], float] = {}
        self._standstill = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ludus-watchdog", daemon=True)

    def beat(self) -> None:
        """The event loop is alive."""
        self._beat = time.monotonic()

    def __enter__(self) -> Self:
        self._beat = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._patience / 4)):
            self.look()

    def look(self) -> None:
        """Say what has taken too long, each thing once, and again when it has taken twice that."""
        held_up = time.monotonic() - self._beat
        if held_up < self._patience:
            self._standstill = 0.0
            self._name_the_slow()
        elif held_up > 2 * self._standstill:
            self._standstill = held_up
            self._warn(f"Everything has stood still for {held_up:.0f} s: {self._culprit()}.")

    def _name_the_slow(self) -> None:
        present = list(self._activities.values())
        excused = self._excused()
        late = {
            (activity.episode_id, activity.since): activity
            for activity in present
            if activity.waited() > self._patience and not (excused and activity.side == "model")
        }
        self._named = {key: told for key, told in self._named.items() if key in late}
        news = [key for key in late if late[key].waited() > 2 * self._named.get(key, 0.0)]
        for key in news[:NAMED]:
            slow = late[key]
            self._warn(f"{slow.episode_id} has waited {slow.waited():.0f} s for {slow.words}.")
        if len(news) > NAMED:
            self._warn(f"{len(news) - NAMED} more episodes wait like that.")
        self._named.update((key, late[key].waited()) for key in news)

    def _culprit(self) -> str:
        """The environment whose call holds up the loop is the one that began last."""
        busy = [a for a in list(self._activities.values()) if a.side == "environment"]
        if not busy:
            return "the event loop is held up"
        latest = max(busy, key=lambda activity: activity.since)
        return (
            f"{latest.environment} holds up the event loop in {latest.words} "
            f"({latest.episode_id}); it should say blocking = True"
        )
