"""The one progress display of a command: redrawn in place on a terminal, sparse lines elsewhere.

It shows one view at a time; a command replaces the view when the next phase begins. On a terminal
the view is redrawn at the bottom. A log file gets a line when a long phase begins, and its progress
every half minute, without repetitions.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, Self

from ludus.cli.display.console import console, escape_control_chars
from ludus.cli.display.progress_bar import progress_counts, spinner_line
from ludus.cli.display.signals import handle_signals
from ludus.rollout.progress import PhaseProgress

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

ProgressCallback = Callable[[str, int, int | None], None]

LOG_INTERVAL_S = 30.0
"""Seconds between two progress lines in a log file."""
REFRESHES_PER_SECOND = 5
MIN_REDRAW_INTERVAL_S = 0.1
"""Least number of seconds between two redraws that the work itself asks for."""


class StatusView(Protocol):
    """The progress of a phase, read again for every redraw."""

    @property
    def headline(self) -> str | None:
        """The first line of the status in a log file; None: no line."""

    def log_line(self) -> str:
        """Progress as one line of a log file; empty: no line."""

    def render(self) -> RenderableType:
        """Progress on a terminal."""


_header: Callable[[], RenderableType] | None = None
"""Drawn above every view; see `status_header`."""


@contextmanager
def status_header(render: Callable[[], RenderableType]) -> Iterator[None]:
    """Draw a line above all views on a terminal: the recipe that the command is a stage of."""
    global _header
    before, _header = _header, render
    try:
        yield
    finally:
        _header = before


class Status:
    """A display that shows nothing, and the base of the others. Use it as a context manager."""

    def show(self, view: StatusView) -> None:
        """Show this view instead of the previous one."""

    def refresh(self) -> None:
        """Redraw, because the view has changed."""

    def print_line(self, text: str, style: str = "") -> None:
        """Print a line that stays. May be called from any thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the display."""


class NoticesOnlyStatus(Status):
    """Prints notices and shows no progress, because a person types on this terminal."""

    def print_line(self, text: str, style: str = "") -> None:
        print(escape_control_chars(text), file=sys.stderr, flush=True)


class LiveStatus(Status):
    """Redraws the view in place at the bottom of a terminal."""

    def __init__(self) -> None:
        self._view: StatusView | None = None
        self._live: Live | None = None
        self._drawn_at = float("-inf")

    def show(self, view: StatusView) -> None:
        # Show how the previous phase ended.
        self.refresh()
        self._view = view
        # Draw now: a long phase may hold the GIL and keep the redraw thread waiting.
        self._draw(force=view.headline is not None)

    def refresh(self) -> None:
        self._draw(force=False)

    def _draw(self, *, force: bool) -> None:
        """Redraw at a limited rate, because GRPO steps may take less than 0.1 s."""
        now = time.monotonic()
        if self._live is not None and (force or now - self._drawn_at >= MIN_REDRAW_INTERVAL_S):
            self._drawn_at = now
            self._live.refresh()

    def print_line(self, text: str, style: str = "") -> None:
        from rich.text import Text

        console(stderr=True).print(Text(escape_control_chars(text), style=style))

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(
            console=console(stderr=True),
            get_renderable=self._render,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            # Where stdout is a file, results go there and not to the terminal.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _render(self) -> RenderableType:
        from rich.console import Group

        view = spinner_line("Starting") if self._view is None else self._view.render()
        return view if _header is None else Group(_header(), view)


class StatusTimer(threading.Thread):
    """A thread that reports the status every `interval_s` seconds, from `start_once` to `stop`."""

    def __init__(self, function: Callable[[], None], interval_s: float) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._interval_s = interval_s
        self._stop_event = threading.Event()

    def run(self) -> None:
        while not self._stop_event.wait(self._interval_s):
            self._function()

    def start_once(self) -> None:
        """Start to report the status, unless that was started before."""
        if self.ident is None:
            self.start()

    def stop(self) -> None:
        """Wait until the thread has ended, if it was started."""
        self._stop_event.set()
        if self.ident is not None:
            self.join()


class LogStatus(Status):
    """Prints lines without control characters, for log files and pipes."""

    def __init__(self, interval_s: float | None = None) -> None:
        self._interval_s = LOG_INTERVAL_S if interval_s is None else interval_s
        self._view: StatusView | None = None
        self._last_line = ""
        self._reported_at = float("-inf")
        self._lock = threading.Lock()
        self._reporter = StatusTimer(self.refresh, self._interval_s)

    def show(self, view: StatusView) -> None:
        self._view = view
        if view.headline:
            self.print_line(view.headline)
        if self._interval_s > 0:
            self._reporter.start_once()

    def refresh(self) -> None:
        """Print the progress, at most once per interval."""
        with self._lock:
            if self._view is None or time.monotonic() - self._reported_at < self._interval_s:
                return
            self._reported_at = time.monotonic()
            self._write(self._view.log_line())

    def print_line(self, text: str, style: str = "") -> None:
        with self._lock:
            self._write(text)

    def __exit__(self, *error: object) -> None:
        self._reporter.stop()

    def _write(self, line: str) -> None:
        if line and line != self._last_line:
            self._last_line = line
            print(escape_control_chars(line), file=sys.stderr, flush=True)


def stderr_status() -> Status:
    """Create the display that suits stderr: redrawn on a terminal, lines in a log file."""
    return LiveStatus() if _is_live_terminal() else LogStatus()


def terminal_status() -> Status:
    """Create a display that shows progress on a terminal, and nothing in a log file."""
    return LiveStatus() if _is_live_terminal() else Status()


def _is_live_terminal() -> bool:
    err = console(stderr=True)
    return err.is_terminal and not err.is_dumb_terminal


class PhaseView:
    """A phase with its counts; `label` names the candidate that it belongs to."""

    def __init__(self, progress: PhaseProgress, label: str = "") -> None:
        self._progress = progress
        self._title = f"{label}: {progress.phase}" if label else progress.phase

    @property
    def headline(self) -> str | None:
        return self._title if self._progress.in_log else None

    @property
    def has_counts(self) -> bool:
        return bool(self._progress.unit)

    def log_line(self) -> str:
        return ", ".join([self._title, *progress_counts(self._progress)])

    def render(self) -> RenderableType:
        return spinner_line(self._title, self._progress)


@contextmanager
def status_callback() -> Iterator[ProgressCallback]:
    """Show the status of work in named steps (`ludus curate`, `import`, `lint`), on terminals only.

    Yields a callback that takes a step's name, what is done of it, and its total if known.

    SIGINT and SIGTERM raise, also from within the callback, so that unfinished output is removed.
    """
    with handle_signals() as raise_pending, terminal_status() as status:
        phase: PhaseProgress | None = None

        def show(name: str, done: int, total: int | None) -> None:
            nonlocal phase
            raise_pending()
            if phase is None or phase.phase != name:
                phase = PhaseProgress(name, total)
                status.show(PhaseView(phase))
            phase.total = total
            phase.advance(done - phase.done)

        yield show
