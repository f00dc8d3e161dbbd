"""Progress of a stage: the events that it reports, and the counts to which they point.

A stage calls one function with each event (`ProgressCallback`). The code that does the work updates
the counts of a phase or a run afterwards; a display reads them from another thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from ludus.data.episode import Episode

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
    """Counts the tokens that a local model has sampled, if there is one, earlier ones included."""
    clock: Callable[[], float] = monotonic

    def __post_init__(self) -> None:
        self._started_at = self._advanced_at = self.clock()
        self._earlier_tokens = self.count_tokens() or 0

    def advance(self, done: int, tokens: int = 0) -> None:
        """Add to the counts."""
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
    """The callback of a stage whose progress nobody wants."""
