"""Names what hangs, from a thread: it still speaks when the event loop itself is held up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from ludus.rollout.activity import Activity

NAMED = 3
"""How many of those that hang are named at once."""


class Watchdog:
    """Looks at what episodes are doing; `warn` is told, from another thread."""

    def __init__(
        self,
        activities: Mapping[str, Activity],
        warn: Callable[[str], None],
        *,
        patience: float = 60.0,
    ) -> None:
        self._activities = activities
        self._warn = warn
        self._patience = patience
        self._beat = time.monotonic()
        self._named: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ludus-watchdog", daemon=True)

    def beat(self) -> None:
        """The event loop is alive."""
        self._beat = time.monotonic()

    def __enter__(self) -> Self:
        self._beat = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._patience / 4)):
            self.look()

    def look(self) -> None:
        """Say what has taken too long, each thing once, and again when it has taken twice that."""
        slow = [activity for activity in list(self._activities.values()) if self._is_news(activity)]
        held_up = time.monotonic() - self._beat
        if held_up > self._patience and self._named.get("", 0.0) < held_up / 2:
            self._named[""] = held_up
            self._warn(f"Everything has stood still for {held_up:.0f} s: {self._culprit()}.")
            return
        for activity in slow[:NAMED]:
            self._warn(
                f"{activity.episode_id} has waited {activity.waited():.0f} s for {activity.words}."
            )
        if len(slow) > NAMED:
            self._warn(f"{len(slow) - NAMED} more episodes wait like that.")

    def _is_news(self, activity: Activity) -> bool:
        key = f"{activity.episode_id}/{activity.since}"
        waited = activity.waited()
        if waited < self._patience or waited < 2 * self._named.get(key, 0.0):
            return False
        self._named[key] = waited
        return True

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
