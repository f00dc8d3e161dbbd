"""The display of `ludus collect` and `ludus eval`: a status display on stderr, or JSON events."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Self

from ludus.cli.display.formatting import (
    format_clock,
    format_count,
    format_counts,
    format_dollars,
    format_rate,
)
from ludus.cli.display.progress_bar import bar_line, decode_texts, time_left
from ludus.cli.display.run_display import RunDisplay
from ludus.cli.display.status import (
    NoticesOnlyStatus,
    PhaseView,
    Status,
    StatusTimer,
    stderr_status,
)
from ludus.cli.program import name_flags
from ludus.rollout.collect_progress import CollectProgress
from ludus.rollout.collector import Collector
from ludus.rollout.phase_progress import PhaseProgress

if TYPE_CHECKING:
    from rich.console import RenderableType

JSON_INTERVAL_S = 10.0
"""Seconds between two progress events."""


class CollectDisplay(RunDisplay[Collector], CollectProgress):
    """Shows the phases of a run, one after the other. Use it as a context manager.

    `label` names the candidate, where several play one after the other. `on_checked` is called
    after the last check and before anything is written.
    """

    label = ""
    on_checked: Callable[[], None] | None = None

    def start_candidate(self, label: str) -> None:
        """Show what follows under this label."""
        self.label, self._run = label, None

    def phase(self, progress: PhaseProgress) -> None:
        self._status.show(PhaseView(progress, self.label))

    def checked(self) -> None:
        if self.on_checked is not None:
            self.on_checked()
        if self.label:
            self.announce_candidate()

    def begin(self, collector: Collector) -> None:
        self.show_run(collector, CollectorView(collector, self.label))

    def announce_candidate(self) -> None:
        """Say that the candidate of this label is about to play."""
        self._status.show(PhaseView(PhaseProgress(f"{self.label} plays", in_log=True)))

    def report_failure(self, message: str) -> None:
        """Report the error that ended the run; on a terminal `main` prints it."""


class JsonCollectDisplay(CollectDisplay):
    """Prints one JSON object per line on stdout: phases, progress, warnings and errors.

    What an environment prints meanwhile goes to stderr.
    """

    def __init__(self, interval_s: float = JSON_INTERVAL_S) -> None:
        super().__init__(Status())
        self._reporter = StatusTimer(self.report, interval_s)
        self._stream = sys.stdout
        self._redirection = redirect_stdout(sys.stderr)

    def phase(self, progress: PhaseProgress) -> None:
        self._run = None
        if progress.in_log:
            self.emit("phase", phase=progress.phase)

    def announce_candidate(self) -> None:
        self.emit("candidate", label=self.label)

    def begin(self, collector: Collector) -> None:
        super().begin(collector)
        self._reporter.start_once()

    def report(self) -> None:
        """Emit a progress event, if episodes are being played."""
        collector = self._run
        if collector is None:
            return
        stats, meter = collector.stats, collector.meter
        decoding: dict[str, float | None] = {}
        if meter.tokens is not None:
            rate = meter.tokens_per_second
            decoding["sampled_tokens"] = meter.tokens
            decoding["tokens_per_second"] = None if rate is None else round(rate, 1)
        self.emit(
            "progress",
            **stats.summary(),
            rate=round(stats.rate, 3),
            seconds_left=collector.seconds_left,
            active=stats.active,
            level=collector.agent.concurrency_limit,
            faults=_fault_counts(collector),
            **decoding,
        )

    def warn(self, message: str) -> None:
        self.emit("warning", message=name_flags(message))

    def report_failure(self, message: str) -> None:
        self.emit("error", message=name_flags(message))

    def emit(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"event": kind, "at": time.time(), **fields}, allow_nan=False)
        print(line, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        self._redirection.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._reporter.stop()
        self._redirection.__exit__(None, None, None)


class CollectorView:
    """Progress of the episodes of a run."""

    headline = None

    def __init__(self, collector: Collector, label: str = "") -> None:
        self._collector, self._label = collector, label

    def log_line(self) -> str:
        stats = self._collector.stats
        done = f"{stats.done:,}/{stats.planned:,} episodes"
        title = f"{self._label}: {done}" if self._label else done
        line = ", ".join([title, *_metric_texts(self._collector)])
        problems = _problem_text(self._collector)
        return f"{line}; {problems}" if problems else line

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        stats = self._collector.stats
        texts = [f"{stats.done:,}/{stats.planned:,}", *_metric_texts(self._collector)]
        lines = [bar_line(self._label, texts, total=stats.planned, done=stats.done)]
        if problems := _problem_text(self._collector):
            lines.append(Text(problems, style="yellow"))
        return Group(*lines)


def _metric_texts(collector: Collector) -> list[str]:
    stats, meter = collector.stats, collector.meter
    totals, is_local = stats.totals, meter.tokens is not None
    if is_local:
        tokens = decode_texts(meter.tokens, meter.tokens_per_second)
    else:
        counted = totals.prompt_tokens + totals.completion_tokens
        tokens = [f"{format_count(counted)} tokens"] if counted else []
    texts = [
        # For a local model tokens per second say more than episodes per second.
        "" if is_local else format_rate(stats.rate),
        f"reward {mean:.3f}" if (mean := totals.rewards.mean) is not None else "",
        *tokens,
        format_dollars(totals.cost),
        "" if is_local else f"{stats.active} under way",
        f"{totals.broken:,} broken" if totals.broken else "",
        *time_left(collector.seconds_left),
    ]
    return [text for text in texts if text]


def _problem_text(collector: Collector) -> str:
    """Retries, throttling, outages, and why the run is ending."""
    faults = _fault_counts(collector)
    parts = [f"retried: {format_counts(faults)}"] if faults else []
    limit = collector.agent.concurrency_limit
    if limit is not None and limit < collector.config.concurrency:
        parts.append(f"slowed to {limit} concurrent calls")
    if (pause := collector.agent.retry_after_s) > 1:
        parts.append(f"the provider asks to wait {format_clock(pause)}")
    if (server := collector.unreachable_server) is not None:
        parts.append(f"waiting for {server} to come back")
    if collector.stop_reason:
        parts.append(f"ending: {collector.stop_reason}")
    return "; ".join(parts)


def _fault_counts(collector: Collector) -> dict[str, int]:
    """Failed calls and broken attempts, by kind."""
    return dict(Counter(collector.agent.faults) + collector.stats.faults)


def progress(label: str | None = None) -> CollectDisplay:
    """Create a progress display for scripts and notebooks.

        with ludus.progress() as progress:
            result = await ludus.collect("wordle", config=config, progress=progress)

    `ludus.evaluate(..., progress=ludus.progress)` shows every candidate under its label.
    """
    display = collect_display(as_json=False)
    display.label = label or ""
    return display


def collect_display(*, as_json: bool, quiet: bool = False) -> CollectDisplay:
    """Create JSON output, or the status display that suits stderr; `quiet`: notices only."""
    if as_json:
        return JsonCollectDisplay()
    return CollectDisplay(NoticesOnlyStatus() if quiet else stderr_status())
