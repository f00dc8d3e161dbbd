"""The display of a run of episodes: its status on stderr, and the reaction to signals."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Generic, Self, TypeVar

from ludus.cli.display.formatting import plural
from ludus.cli.display.signals import INTERRUPTED, TERMINATED
from ludus.cli.display.status import Status, StatusView
from ludus.cli.program import name_flags
from ludus.rollout.episode_scheduler import EpisodeScheduler

RunT = TypeVar("RunT", bound=EpisodeScheduler)


class RunDisplay(Generic[RunT]):
    """Shows a run in a status display, and stops it on signals. Use it as a context manager."""

    _run: RunT | None = None

    def __init__(self, status: Status) -> None:
        self._status = status

    def show_run(self, run: RunT, view: StatusView) -> None:
        """Show the progress of a run of this event loop; from now on signals stop that run."""
        self._run, self._loop = run, asyncio.get_running_loop()
        self._status.show(view)

    def warn(self, message: str) -> None:
        self._status.print_line(name_flags(message), "yellow")

    def request_stop(self, reason: str, count: int) -> bool:
        """Drain on the first Ctrl-C, abort on the second or on SIGTERM.

        False before the first episode and from the third signal on: then the program stops at once.
        """
        run = self._run
        if run is None or count > 2:
            return False

        def drain() -> None:
            run.drain(INTERRUPTED, requested=True)
            if active := run.stats.active:
                self.warn(f"Finishing {plural(active, 'episode')}; Ctrl-C again stops at once.")

        # In a signal handler: the event loop may be in the middle of anything.
        if reason == TERMINATED or count > 1:
            self._loop.call_soon_threadsafe(partial(run.abort, reason, requested=True))
        else:
            self._loop.call_soon_threadsafe(drain)
        return True

    def __enter__(self) -> Self:
        self._status.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.__exit__(*error)
