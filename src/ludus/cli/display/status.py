"""The one progress display of a command: on a terminal, in a log file, or as JSON lines.

It shows one view at a time; a command replaces the view when the next phase begins. On a terminal
the view is redrawn at the bottom. A log file gets a line when a long phase begins, and its progress
every half minute, without repetitions.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, Self

from ludus.cli.display.console import console, escape_control_chars
from ludus.cli.display.formatting import format_count, format_time_left
from ludus.cli.display.signals import handle_signals
from ludus.rollout.progress import PhaseProgress

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from ludus.data.tool_schema import JsonObject

ProgressCallback = Callable[[str, int, int | None], None]

LOG_INTERVAL_S = 30.0
"""Seconds between two progress lines in a log file."""
JSON_INTERVAL_S = 5.0
"""Seconds between two progress events of `--json`."""
REFRESHES_PER_SECOND = 5
MIN_REDRAW_INTERVAL_S = 0.1
"""Least number of seconds between two redraws that the work itself asks for."""
BAR_WIDTH, _MIN_BAR_WIDTH = 30, 8
_spinners: dict[str, RenderableType] = {}
"""The spinner of all phases: shared, so that it does not restart with each phase."""


class StatusView(Protocol):
    """The progress of a phase, read again for every redraw."""

    headline: str | None
    """The first line of the status in a log file; None: no line."""

    def log_line(self) -> str:
        """Progress as one line of a log file; empty: no line."""

    def progress(self) -> JsonObject:
        """Progress as the fields of a JSON event; empty: no event."""

    def render(self) -> RenderableType:
        """Progress on a terminal."""


class Status:
    """A display that shows nothing, and the base of the others. Use it as a context manager."""

    def show(self, view: StatusView) -> None:
        """Show this view instead of the previous one."""

    def refresh(self) -> None:
        """Redraw, because the view has changed."""

    def notify(self, message: str, style: str = "") -> None:
        """Print a message that stays. May be called from any thread."""

    def emit(self, event: str, fields: Mapping[str, object]) -> None:
        """Print an event, if the output is JSON."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the display."""


class LiveStatus(Status):
    """Redraws the view in place at the bottom of a terminal."""

    def __init__(self) -> None:
        self._view: StatusView = PhaseStatus(PhaseProgress("Starting"))
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

    def notify(self, message: str, style: str = "") -> None:
        from rich.text import Text

        console(stderr=True).print(Text(escape_control_chars(message), style=style))

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(
            console=console(stderr=True),
            get_renderable=lambda: self._view.render(),
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            # If stdout is a file, results go there and not to the terminal.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class LogStatus(Status):
    """Prints lines without control characters, for log files and pipes."""

    def __init__(self, interval_s: float | None = None) -> None:
        self._interval_s = LOG_INTERVAL_S if interval_s is None else interval_s
        self._view: StatusView | None = None
        self._last_line = ""
        self._reported_at = float("-inf")
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._timer: threading.Thread | None = None

    def show(self, view: StatusView) -> None:
        self._view = view
        if view.headline:
            self._announce(view.headline)
        if self._timer is None and self._interval_s > 0:

            def report() -> None:
                while not self._ended.wait(self._interval_s):
                    self.refresh()

            self._timer = threading.Thread(target=report, daemon=True)
            self._timer.start()

    def refresh(self) -> None:
        """Print the progress, at most once per interval."""
        with self._lock:
            if self._view is None or time.monotonic() - self._reported_at < self._interval_s:
                return
            self._reported_at = time.monotonic()
            self._report(self._view)

    def notify(self, message: str, style: str = "") -> None:
        with self._lock:
            self._write(message)

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.join()

    def _announce(self, headline: str) -> None:
        self.notify(headline)

    def _report(self, view: StatusView) -> None:
        self._write(view.log_line())

    def _write(self, line: str) -> None:
        if line and line != self._last_line:
            self._last_line = line
            print(escape_control_chars(line), file=sys.stderr, flush=True)


class JsonStatus(LogStatus):
    """Prints events as JSON lines on the stdout that there is when it is created."""

    def __init__(self, interval_s: float = JSON_INTERVAL_S) -> None:
        super().__init__(interval_s)
        self._stdout = sys.stdout

    def emit(self, event: str, fields: Mapping[str, object]) -> None:
        with self._lock:
            print(format_event(event, fields), file=self._stdout, flush=True)

    def notify(self, message: str, style: str = "") -> None:
        self.emit("notice", {"message": message})

    def _announce(self, headline: str) -> None:
        self.emit("phase", {"phase": headline})

    def _report(self, view: StatusView) -> None:
        if fields := view.progress():
            self.emit("progress", fields)


def format_event(event: str, fields: Mapping[str, object]) -> str:
    """Format an event as a line of `--json`. Numbers that are not finite become null."""
    from ludus.data.json_files import to_jsonable

    return json.dumps(to_jsonable({"event": event, **fields}), allow_nan=False)


def create_status(*, as_json: bool = False) -> Status:
    """JSON, or the display that suits stderr: redrawn on a terminal, lines in a log file."""
    if as_json:
        return JsonStatus()
    return LiveStatus() if _is_live_terminal() else LogStatus()


def terminal_status() -> Status:
    """Create a display that shows progress on a terminal, and nothing in a log file."""
    return LiveStatus() if _is_live_terminal() else Status()


def _is_live_terminal() -> bool:
    err = console(stderr=True)
    return err.is_terminal and not err.is_dumb_terminal


class PhaseStatus:
    """A phase with its counts; `label` names the candidate that it belongs to."""

    def __init__(self, progress: PhaseProgress, label: str = "") -> None:
        self._progress = progress
        self._title = f"{label}: {progress.phase}" if label else progress.phase
        self.headline = self._title if progress.in_log else None
        self.has_counts = bool(progress.unit)

    def log_line(self) -> str:
        return ", ".join([self._title, *progress_counts(self._progress)])

    def progress(self) -> JsonObject:
        names = ("done", "total", "unit", "tokens", "tokens_per_second", "seconds_left")
        counts = {name: getattr(self._progress, name) for name in names}
        return {"phase": self._title, **counts} if self.has_counts else {}

    def render(self) -> RenderableType:
        """A spinner, the title, and a bar with counts if something is counted."""
        from rich.spinner import Spinner

        name = "line" if console(stderr=True).options.ascii_only else "dots"
        spinner, progress = _spinners.setdefault(name, Spinner(name)), self._progress
        return bar_line(
            self._title,
            progress_counts(progress),
            lead=[spinner],
            total=progress.total,
            done=progress.done,
        )


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
                status.show(PhaseStatus(phase))
            phase.total = total
            phase.advance(done - phase.done)

        yield show


def bar_line(
    title: str,
    texts: Sequence[str],
    *,
    lead: Sequence[RenderableType] = (),
    total: int | None = None,
    done: int = 0,
) -> RenderableType:
    """Render title, bar and texts in one line; without the bar if the terminal is too narrow."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    title, text = escape_control_chars(title), "  ".join(texts)
    room = console(stderr=True).width - len(title) - len(text) - 2 * len(lead) - 4
    grid = Table.grid(padding=(0, 1))
    if total and room >= _MIN_BAR_WIDTH:
        bar = ProgressBar(total, done, width=min(BAR_WIDTH, room))
        grid.add_row(*lead, *([Text(title)] if title else []), bar, Text(text))
    else:
        grid.add_row(*lead, Text("  ".join(filter(None, [title, text]))))
    return grid


def progress_counts(progress: PhaseProgress) -> list[str]:
    """Format count, speed and estimated time left."""
    done = f"{progress.done:,}"
    if progress.total is not None:
        done = f"{done}/{progress.total:,}"
    is_counted = progress.unit or progress.total is not None
    return [
        *([f"{done} {progress.unit}".rstrip()] if is_counted else []),
        *decode_texts(progress.tokens, progress.tokens_per_second),
        *time_left(progress.seconds_left),
    ]


def decode_texts(tokens: int | None, rate: float | None) -> list[str]:
    """Format sampled tokens and their rate; empty if tokens are not counted."""
    if tokens is None:
        return []
    sampled = f"{format_count(tokens)} tokens"
    if rate is None:
        return [sampled]
    return [sampled, f"{format_count(rate) if rate >= 10 else round(rate, 1)} tokens/s"]


def time_left(seconds: float | None) -> list[str]:
    """The estimate `~3 min left`; empty if there is none."""
    return [] if seconds is None else [f"{format_time_left(seconds)} left"]
