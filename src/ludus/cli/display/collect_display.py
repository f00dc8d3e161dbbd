"""How a run shows itself: in the status display of a command, or as JSON if asked."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from ludus.cli.display.formatting import (
    format_clock,
    format_count,
    format_counts,
    format_dollars,
    format_rate,
)
from ludus.cli.display.status import (
    NoticesOnlyStatus,
    PhaseView,
    Status,
    bar_line,
    decode_texts,
    stderr_status,
    time_left,
)
from ludus.rollout.callbacks import CollectProgress
from ludus.rollout.collector import Collector
from ludus.rollout.progress import PhaseProgress

if TYPE_CHECKING:
    from rich.console import RenderableType

JSON_INTERVAL_S = 10.0
"""Seconds between two progress events."""


class CollectDisplay(CollectProgress):
    """A reporter that shows the phases of a run, one after the other. Use it as a context manager.

    `label` says who plays, where several play one after the other.
    """

    label = ""

    def __init__(self, status: Status) -> None:
        self._status = status

    def phase(self, progress: PhaseProgress) -> None:
        self._status.show(PhaseView(progress, self.label))

    def checked(self) -> None:
        if self.label:
            self.announce_candidate()

    def begin(self, collector: Collector) -> None:
        self._status.show(CollectorView(collector, self.label))

    def announce_candidate(self) -> None:
        """The candidate of this label is about to play."""
        self._status.show(PhaseView(PhaseProgress(f"{self.label} plays", in_log=True)))

    def warn(self, words: str) -> None:
        self._status.print_line(words, "yellow")

    def report_failure(self, words: str) -> None:
        """The run has come to nothing; the error itself is shown by others."""

    def __enter__(self) -> Self:
        self._status.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.__exit__(*error)


class JsonCollectDisplay(CollectDisplay):
    """One JSON object a line on stdout: phases, progress, warnings, and in the end the summary."""

    def __init__(self, interval_s: float = JSON_INTERVAL_S) -> None:
        super().__init__(Status())
        self._interval_s = interval_s
        self._collector: Collector | None = None
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None

    def phase(self, progress: PhaseProgress) -> None:
        self._collector = None
        if progress.in_log:
            self.emit("phase", phase=progress.phase)

    def announce_candidate(self) -> None:
        self.emit("candidate", label=self.label)

    def begin(self, collector: Collector) -> None:
        self._collector = collector
        if self._thread is None:
            self._thread = threading.Thread(target=self._report_periodically, daemon=True)
            self._thread.start()

    def _report_periodically(self) -> None:
        while not self._stop_event.wait(self._interval_s):
            if (collector := self._collector) is not None:
                self.report(collector)

    def report(self, collector: Collector) -> None:
        tally = collector.stats
        self.emit(
            "progress",
            **tally.summary(),
            rate=round(tally.rate, 3),
            seconds_left=collector.seconds_left,
            active=tally.active,
            level=collector.agent.concurrency_limit,
            faults=_fault_counts(collector),
            **_decode_stats(collector),
        )

    def warn(self, words: str) -> None:
        self.emit("warning", message=words)

    def report_failure(self, words: str) -> None:
        self.emit("error", message=words)

    def emit(self, kind: str, **facts: Any) -> None:
        line = json.dumps({"event": kind, "at": time.time(), **facts}, allow_nan=False)
        print(line, flush=True)

    def __exit__(self, *error: object) -> None:
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join()


class CollectorView:
    """Episodes that are being played."""

    headline = None

    def __init__(self, collector: Collector, label: str = "") -> None:
        self._collector, self._label = collector, label

    def log_line(self) -> str:
        tally = self._collector.stats
        done = f"{tally.planned - tally.remaining:,}/{tally.planned:,} episodes"
        title = f"{self._label}: {done}" if self._label else done
        trouble = _problem_text(self._collector)
        return ", ".join([title, *_metric_texts(self._collector)]) + (
            f"; {trouble}" if trouble else ""
        )

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        tally = self._collector.stats
        done = tally.planned - tally.remaining
        said = [f"{done:,}/{tally.planned:,}", *_metric_texts(self._collector)]
        lines = [bar_line(self._label, said, total=tally.planned, done=done)]
        if trouble := _problem_text(self._collector):
            lines.append(Text(trouble, style="yellow"))
        return Group(*lines)


def _metric_texts(collector: Collector) -> list[str]:
    tally = collector.stats
    totals, is_local = tally.totals, collector.meter.tokens is not None
    parts = [
        # Beside tokens a second it would be one rate too many.
        "" if is_local else format_rate(tally.rate),
        f"reward {totals.mean_reward:.3f}" if totals.mean_reward is not None else "",
        *_token_texts(collector),
        format_dollars(totals.cost),
        "" if is_local else f"{tally.active} under way",
        f"{totals.broken:,} broken" if totals.broken else "",
        *time_left(collector.seconds_left),
    ]
    return [part for part in parts if part]


def _token_texts(collector: Collector) -> list[str]:
    """Of a local model those that it has sampled, else what the provider has counted."""
    meter, totals = collector.meter, collector.stats.totals
    if meter.tokens is not None:
        return decode_texts(meter.tokens, meter.tokens_per_second)
    tokens = totals.prompt_tokens + totals.completion_tokens
    return [f"{format_count(tokens)} tokens"] if tokens else []


def _decode_stats(collector: Collector) -> dict[str, float | None]:
    """Of a local model."""
    meter = collector.meter
    if meter.tokens is None:
        return {}
    rate = meter.tokens_per_second
    return {
        "sampled_tokens": meter.tokens,
        "tokens_per_second": None if rate is None else round(rate, 1),
    }


def _problem_text(collector: Collector) -> str:
    """What goes wrong, what is waited for, and why it is ending."""
    faults = _fault_counts(collector)
    parts = [f"tried again: {format_counts(faults)}"] if faults else []
    level = collector.agent.concurrency_limit
    if level is not None and level < collector.config.concurrency:
        parts.append(f"slowed to {level} calls at once")
    if (pause := collector.agent.retry_after_s) > 1:
        parts.append(f"the provider asks to wait {format_clock(pause)}")
    if (server := collector.unreachable_server) is not None:
        parts.append(f"waiting for {server} to come back")
    if collector.stop_reason:
        parts.append(f"ending: {collector.stop_reason}")
    return "; ".join(parts)


def _fault_counts(collector: Collector) -> dict[str, int]:
    """By kind: calls that failed and attempts that broke."""
    return dict(Counter(collector.agent.faults) + collector.stats.faults)


def progress(label: str | None = None) -> CollectDisplay:
    """A display for scripts and notebooks.

        with ludus.progress() as reporter:
            result = await ludus.collect("wordle", progress=reporter)

    `ludus.evaluate(..., progress=ludus.progress)` shows every candidate under its label.
    """
    shown = collect_display(as_json=False)
    shown.label = label or ""
    return shown


def collect_display(*, as_json: bool, quiet: bool = False) -> CollectDisplay:
    """The display that fits where the output goes."""
    if as_json:
        return JsonCollectDisplay()
    return CollectDisplay(NoticesOnlyStatus() if quiet else stderr_status())
