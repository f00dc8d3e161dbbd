"""Progress of a stage: the events that it reports, what its episodes are doing, and a watchdog.

A stage calls one function with each event (`ProgressCallback`). The code that does the work updates
the counts of a phase or a run afterwards; a display reads them from another thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Literal, Self

from ludus.data.episode import Episode, Usage

if TYPE_CHECKING:
    from ludus.rollout.episode_run import EpisodeRun


@dataclass
class PhaseProgress:
    """A phase begins, such as loading a model or measuring the test loss."""

    phase: str = ""
    """A title for the user, such as "Loading smollm2"."""
    total: int | None = None
    unit: str = ""
    """What is counted: episodes, rows."""
    done: int = 0
    token_count: int | None = None
    """Tokens processed by the model in this phase; None if they are not counted."""
    in_log: bool = False
    """Whether a log file gets a line when the phase begins, because it may take long."""
    count_tokens: Callable[[], int | None] = lambda: None
    """Counts the tokens of a local model, if there is one, earlier ones included."""
    clock: Callable[[], float] = monotonic

    def __post_init__(self) -> None:
        self._started_at = self._advanced_at = self.clock()
        self._earlier_tokens = self.count_tokens() or 0

    def advance(self, done: int, tokens: int = 0) -> None:
        """Add to the counts of the phase."""
        self.done += done
        if self.token_count is not None:
            self.token_count += tokens
        self._advanced_at = self.clock()

    @property
    def tokens(self) -> int | None:
        sampled = self.count_tokens()
        return self.token_count if sampled is None else sampled - self._earlier_tokens

    @property
    def tokens_per_second(self) -> float | None:
        until = self._advanced_at if self.token_count is not None else self.clock()
        tokens, passed = self.tokens, until - self._started_at
        return tokens / passed if tokens and passed > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Extrapolated from the mean time per unit, less the time since the last update."""
        if self.total is None or self.done <= 0:
            return None
        seconds_per_unit = (self._advanced_at - self._started_at) / self.done
        estimate = seconds_per_unit * max(0, self.total - self.done)
        return max(0.0, estimate - (self.clock() - self._advanced_at))


@dataclass(frozen=True, slots=True)
class ChecksPassed:
    """All checks have passed, and nothing was written yet. A callback may raise, to refuse."""


@dataclass(frozen=True, slots=True)
class CandidateStarted:
    """What follows belongs to this candidate of an evaluation."""

    label: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The first episodes of a run are about to start, after all phases."""

    run: EpisodeRun


@dataclass(frozen=True, slots=True)
class EpisodeRecorded:
    """An episode was played or scored, and written."""

    episode: Episode


@dataclass(frozen=True, slots=True)
class RunEnded:
    """All episodes of a run have ended; it cannot be stopped any more."""

    run: EpisodeRun


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning for the user, in one line. May come from another thread."""

    message: str


ProgressEvent = (
    PhaseProgress
    | ChecksPassed
    | CandidateStarted
    | RunStarted
    | EpisodeRecorded
    | RunEnded
    | Notice
)
ProgressCallback = Callable[[ProgressEvent], None]


def ignore_progress(event: ProgressEvent) -> None:
    """A callback that ignores progress."""


Side = Literal["model", "environment"]

MAX_NAMED = 3
"""Slow episodes that the watchdog names in one round; the others are counted."""


@dataclass(slots=True)
class EpisodeProgress:
    """What one attempt is waiting for, and where its time went."""

    episode_id: str
    environment: str = ""
    activity: str = "starting"
    side: Side = "environment"
    since: float = field(default_factory=time.monotonic)
    """When the present activity began."""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    usage: Usage = field(default_factory=Usage)
    """What the model has used so far."""
    seconds: dict[Side, float] = field(default_factory=lambda: {"model": 0.0, "environment": 0.0})

    @contextmanager
    def track(self, side: Side, activity: str) -> Iterator[None]:
        """Mark the episode as waiting for this activity during the block; add up the time."""
        self.side, self.activity, self.since = side, activity, time.monotonic()
        try:
            yield
        finally:
            self.seconds[side] += self.elapsed()

    def elapsed(self) -> float:
        """Seconds since the present activity began."""
        return time.monotonic() - self.since


class Watchdog:
    """Warns about episodes that wait for long, and about a blocked event loop.

    It has a thread, so that it also works while the event loop is blocked.

    Args:
        statuses: the active episodes, by id; changed by the event loop while the thread reads.
        warn: called from the watchdog's thread.
        timeout: seconds after which a wait is reported.
        model_excused: while it returns True, waits for the model are not reported.
    """

    def __init__(
        self,
        statuses: Mapping[str, EpisodeProgress],
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
        """How long each wait had lasted at its last warning, by episode and start of the wait."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ludus-watchdog", daemon=True)

    def heartbeat(self) -> None:
        """To be called regularly by the event loop: shows that it is not blocked."""
        self._last_heartbeat = time.monotonic()

    def __enter__(self) -> Self:
        self.heartbeat()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(min(1.0, self._timeout / 4)):
            self.check()

    def check(self) -> None:
        """Warn about each long wait without progress once, and again whenever it has doubled."""
        # A copy in one step: the event loop adds and removes episodes meanwhile.
        statuses = list(self._statuses.values())
        stalled = time.monotonic() - self._last_heartbeat
        waits: dict[tuple[str, float], tuple[float, str]] = {}
        if stalled >= self._timeout:
            blocker = "something blocks it"
            if calls := [each for each in statuses if each.side == "environment"]:
                # The call that started last blocks the loop: none could start after it.
                last = max(calls, key=lambda status: status.since)
                blocker = (
                    f"{last.environment} blocks it in {last.activity} ({last.episode_id}); "
                    "set blocking = True in its class"
                )
            text = f"The event loop has not run for {stalled:.0f} s: {blocker}."
            waits["", self._last_heartbeat] = stalled, text
        else:
            excused = self._model_excused()
            for status in statuses:
                waited = status.elapsed()
                if waited > self._timeout and not (excused and status.side == "model"):
                    text = f"{status.episode_id} has waited {waited:.0f} s for {status.activity}."
                    waits[status.episode_id, status.since] = waited, text
        due = [key for key, (waited, _) in waits.items() if waited > 2 * self._warned.get(key, 0)]
        for key in due[:MAX_NAMED]:
            self._warn(waits[key][1])
        if len(due) > MAX_NAMED:
            self._warn(f"{len(due) - MAX_NAMED} more episodes have waited for as long.")
        self._warned = {key: at for key, at in self._warned.items() if key in waits}
        self._warned |= {key: waits[key][0] for key in due}
