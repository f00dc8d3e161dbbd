"""The progress of runs (`ludus collect`, `eval`, `rescore`)."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ludus.cli.display.formatting import (
    format_clock,
    format_count,
    format_counts,
    format_dollars,
    format_rate,
    plural,
)
from ludus.cli.display.signals import INTERRUPTED, TERMINATED, handle_signals
from ludus.cli.display.status import (
    LogStatus,
    PhaseStatus,
    Status,
    bar_line,
    create_status,
    decode_texts,
    time_left,
)
from ludus.cli.flags import name_flags
from ludus.client.event_loop import run_async
from ludus.rollout.collect import Collector
from ludus.rollout.episode_run import EpisodeRun
from ludus.rollout.progress import (
    CandidateStarted,
    ChecksPassed,
    Notice,
    PhaseProgress,
    ProgressEvent,
    RunEnded,
    RunStarted,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ludus.data.tool_schema import JsonObject
    from ludus.scoring.judge import Judge

T = TypeVar("T")


class RunDisplay:
    """Shows the events of a stage in a status display, and stops its run on signals.

    Use it as a context manager, and as the callback of the stage. `label` names the candidate, if
    several play one after the other. `on_checked` is called after the last check and before
    anything is written.
    """

    def __init__(self, status: Status, label: str = "") -> None:
        self.label = label
        self.on_checked: Callable[[], None] | None = None
        self._status = status
        self._run: EpisodeRun | None = None

    def __call__(self, event: ProgressEvent) -> None:
        match event:
            case PhaseProgress():
                self._status.show(PhaseStatus(event, self.label))
            case CandidateStarted():
                self.label = event.label
            case ChecksPassed():
                if self.on_checked is not None:
                    self.on_checked()
                if self.label:
                    started = PhaseProgress(f"{self.label} plays", in_log=True)
                    self._status.show(PhaseStatus(started))
            case RunStarted():
                # From now on signals stop this run.
                self._run, self._loop = event.run, asyncio.get_running_loop()
                self._status.show(RunView(event.run, self.label))
            case RunEnded():
                self._run = None
            case Notice():
                self.warn(event.message)

    def warn(self, message: str) -> None:
        self._status.notify(name_flags(message), "yellow")

    def run(self, stage: Coroutine[Any, Any, T], *, is_human: bool = False) -> T:
        """Run a stage to its end, or to a signal.

        Other output goes to stderr meanwhile, unless a human plays.
        """

        async def main() -> T:
            with handle_signals(self.request_stop):
                return await stage

        with nullcontext() if is_human else redirect_stdout(sys.stderr):
            return run_async(main())

    def request_stop(self, reason: str, count: int) -> bool:
        """Drain on the first Ctrl-C, abort on the second or on SIGTERM.

        False while no episode is played and from the third signal on: then the program stops at
        once.
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


class RunView:
    """Progress of the episodes of a run that plays or scores them."""

    headline: str | None = None

    def __init__(self, run: EpisodeRun, label: str = "") -> None:
        self._run = run
        is_collector = isinstance(run, Collector)
        self._title = label or ("" if is_collector else "Scoring")

    def log_line(self) -> str:
        stats = self._run.stats
        done = f"{stats.done:,}/{stats.planned:,} episodes"
        title = f"{self._title}: {done}" if self._title else done
        line = ", ".join([title, *_metric_texts(self._run)])
        problems = _problem_text(self._run)
        return f"{line}; {problems}" if problems else line

    def progress(self) -> JsonObject:
        run, fields = self._run, self._run.stats.summary()
        if isinstance(run, Collector) and run.decoding.tokens is not None:
            fields["sampled_tokens"] = run.decoding.tokens
            fields["tokens_per_second"] = run.decoding.tokens_per_second
        return {
            "phase": self._title or "Playing",
            **fields,
            "episodes_per_second": run.stats.rate,
            "seconds_left": run.stats.seconds_left,
            "active": run.stats.active,
            "problems": _problem_text(run),
        }

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        stats = self._run.stats
        texts = [f"{stats.done:,}/{stats.planned:,}", *_metric_texts(self._run)]
        lines = [bar_line(self._title, texts, total=stats.planned, done=stats.done)]
        if problems := _problem_text(self._run):
            lines.append(Text(problems, style="yellow"))
        return Group(*lines)


def _metric_texts(run: EpisodeRun) -> list[str]:
    """Speed, reward, tokens and time left: what suits a model in this process, or an API."""
    stats, totals = run.stats, run.stats.totals
    mean = totals.rewards.mean
    reward = f"reward {mean:.3f}" if mean is not None else ""
    if not isinstance(run, Collector):
        texts = [format_rate(stats.rate), reward]
        judge: Judge | None = getattr(run, "judge", None)
        if judge is not None:
            used = judge.stats
            texts += [
                plural(used.calls, "call"),
                f"{used.failed:,} failed" if used.failed else "",
                format_dollars(used.usage.cost),
            ]
    elif run.decoding.tokens is not None:
        # Tokens per second say more than episodes per second.
        tokens = decode_texts(run.decoding.tokens, run.decoding.tokens_per_second)
        texts = [reward, *tokens, format_dollars(totals.cost)]
    else:
        counted = totals.prompt_tokens + totals.completion_tokens
        texts = [
            format_rate(stats.rate),
            reward,
            f"{format_count(counted)} tokens" if counted else "",
            format_dollars(totals.cost),
            f"{stats.active} under way",
        ]
    broken = f"{totals.broken:,} broken" if totals.broken else ""
    return [text for text in (*texts, broken, *time_left(run.stats.seconds_left)) if text]


def _problem_text(run: EpisodeRun) -> str:
    """Retries, throttling, outages, and why the run is ending."""
    calls = Counter(run.agent.faults) if run.agent is not None else Counter[str]()
    faults = calls + run.stats.faults
    parts = [f"retried: {format_counts(faults)}"] if faults else []
    if run.agent is not None:
        limit = run.agent.concurrency_limit
        if limit is not None and limit < run.concurrency:
            parts.append(f"slowed to {limit} concurrent calls")
        if (pause := run.agent.retry_after_s) > 1:
            parts.append(f"the provider asks to wait {format_clock(pause)}")
    if isinstance(run, Collector) and (server := run.unreachable_server) is not None:
        parts.append(f"waiting for {server} to come back")
    if run.stop_reason:
        parts.append(f"ending: {run.stop_reason}")
    return "; ".join(parts)


def progress(label: str = "", *, quiet: bool = False, as_json: bool = False) -> RunDisplay:
    """Create a display of the progress of a run, for scripts and notebooks.

        with ludus.progress() as progress:
            result = await ludus.collect("wordle", config=config, progress=progress)

    `ludus.evaluate` and `ludus.rescore` take it, too. `quiet`: notices only, as a person types.
    `as_json`: events as JSON lines on stdout.
    """
    status = LogStatus(interval_s=0) if quiet else create_status(as_json=as_json)
    return RunDisplay(status, label)
