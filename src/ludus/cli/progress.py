"""How a run shows itself: drawn on a terminal, in lines elsewhere, as JSON if asked."""

from __future__ import annotations

import json
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any

from ludus.cli.console import console
from ludus.cli.figures import clock, count, dollars, speed, tallied
from ludus.rollout.collector import Collector
from ludus.rollout.reporter import Reporter

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

EVERY = 10.0
"""Seconds between two plain lines."""


class Display(Reporter):
    """A reporter that can be ended. This one shows nothing but warnings."""

    def warn(self, words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    def failed(self, words: str) -> None:
        """The run has come to nothing; the error itself is shown by others."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing more will happen."""


class LiveDisplay(Display):
    """A bar and a few lines that keep themselves up to date."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def begin(self, collector: Collector) -> None:
        from rich.live import Live

        self._live = Live(
            console=console(stderr=True),
            get_renderable=lambda: picture(collector),
            refresh_per_second=5,
            transient=True,
        )
        self._live.start()

    def warn(self, words: str) -> None:
        from rich.text import Text

        console(stderr=True).print(Text(words, style="yellow"))

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()


class _Periodic(Display, ABC):
    """Says how things stand every few seconds, from a thread of its own."""

    def __init__(self, every: float = EVERY) -> None:
        self._every = every
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, collector: Collector) -> None:
        self._thread = threading.Thread(target=self._talk, args=(collector,), daemon=True)
        self._thread.start()

    def _talk(self, collector: Collector) -> None:
        while not self._over.wait(self._every):
            self.say(collector)

    @abstractmethod
    def say(self, collector: Collector) -> None:
        """How things stand."""

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()


class PlainDisplay(_Periodic):
    """Lines for a log file."""

    def say(self, collector: Collector) -> None:
        tally = collector.tally
        done = tally.planned - tally.left
        parts = [f"{done:,}/{tally.planned:,} episodes", *_figures(collector)]
        line = ", ".join(part for part in parts if part)
        trouble = _trouble(collector)
        print(line + (f"; {trouble}" if trouble else ""), file=sys.stderr, flush=True)


class JsonDisplay(_Periodic):
    """One JSON object a line on stdout: progress, warnings, and in the end the summary."""

    def say(self, collector: Collector) -> None:
        tally = collector.tally
        self.event(
            "progress",
            **tally.summary(),
            rate=round(tally.rate, 3),
            seconds_left=tally.seconds_left,
            active=tally.active,
            level=collector.agent.level,
            faults=_faults(collector),
        )

    def warn(self, words: str) -> None:
        self.event("warning", message=words)

    def failed(self, words: str) -> None:
        self.event("error", message=words)

    def event(self, kind: str, **facts: Any) -> None:
        line = json.dumps({"event": kind, "at": time.time(), **facts}, allow_nan=False)
        print(line, flush=True)


def picture(collector: Collector) -> RenderableType:
    """The run as it stands."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    tally = collector.tally
    done = tally.planned - tally.left
    bar = Table.grid(padding=(0, 1), expand=False)
    bar.add_row(
        ProgressBar(total=tally.planned, completed=done, width=30),
        Text(f"{done:,}/{tally.planned:,}", style="bold"),
        Text("  ".join(part for part in _figures(collector) if part)),
    )
    lines: list[RenderableType] = [bar]
    if trouble := _trouble(collector):
        lines.append(Text(trouble, style="yellow"))
    return Group(*lines)


def _figures(collector: Collector) -> list[str]:
    tally = collector.tally
    totals = tally.totals
    tokens = totals.prompt_tokens + totals.completion_tokens
    left = tally.seconds_left
    return [
        speed(tally.rate),
        f"reward {totals.mean:.3f}" if totals.mean is not None else "",
        f"{count(tokens)} tokens" if tokens else "",
        dollars(totals.cost),
        f"{tally.active} under way",
        f"{totals.broken:,} broken" if totals.broken else "",
        f"{clock(left)} left" if left is not None else "",
    ]


def _trouble(collector: Collector) -> str:
    """What goes wrong, what is waited for, and why it is ending."""
    faults = _faults(collector)
    parts = [f"tried again: {tallied(faults)}"] if faults else []
    level = collector.agent.level
    if level is not None and level < collector.tuning.concurrency:
        parts.append(f"slowed to {level} calls at once")
    if (pause := collector.agent.pause) > 1:
        parts.append(f"the provider asks to wait {clock(pause)}")
    if (server := collector.waiting_for) is not None:
        parts.append(f"waiting for {server} to come back")
    if collector.stopped:
        parts.append(f"ending: {collector.stopped}")
    return "; ".join(parts)


def _faults(collector: Collector) -> dict[str, int]:
    """By kind: calls that failed and attempts that broke."""
    return dict(Counter(collector.agent.faults) + collector.tally.faults)


def progress(label: str | None = None) -> Display:
    """A display for scripts and notebooks.

        with ludus.progress() as reporter:
            outcome = await ludus.collect(job, reporter=reporter)

    `ludus.evaluate(..., watch=ludus.progress)` shows every candidate under its label.
    """
    if label is not None:
        print(f"{label} plays", file=sys.stderr, flush=True)
    return display(as_json=False)


def display(*, as_json: bool, quiet: bool = False) -> Display:
    """The display that fits where the output goes."""
    if as_json:
        return JsonDisplay()
    if quiet:
        return Display()
    return LiveDisplay() if console(stderr=True).is_terminal else PlainDisplay()
