"""Progress of a stage: the events that it reports, and the counts to which they point.

A stage calls one function with each event (`ProgressCallback`). The code that does the work updates
the counts of a phase or a run afterwards; a display reads them from another thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from ludus.data.episode import Episode
from ludus.rollout.loop import EpisodeLimits

if TYPE_CHECKING:
    from ludus.rollout.episode_run import EpisodeRun

RATE_WINDOW_S = 10.0
"""Length of the window over which the decoding rate is averaged."""


@dataclass
class PhaseProgress:
    """A phase begins, such as loading a model or measuring the test loss."""

    phase: str
    """A title for the user, such as "Loading smollm2"."""
    total: int | None = None
    unit: str = ""
    """What is counted: episodes, rows."""
    done: int = 0
    token_count: int | None = None
    """Tokens processed by the model in this phase; None where they are not counted."""
    in_log: bool = False
    """Whether a log file gets a line when the phase begins, because it may take long."""
    clock: Callable[[], float] = monotonic
    _started_at: float = field(init=False)
    _advanced_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_at = self._advanced_at = self.clock()

    def advance(self, done: int, tokens: int = 0) -> None:
        """Add to the counts."""
        self.done += done
        if self.token_count is not None:
            self.token_count += tokens
        self._advanced_at = self.clock()

    @property
    def tokens(self) -> int | None:
        return self.token_count

    @property
    def tokens_per_second(self) -> float | None:
        passed = self._advanced_at - self._started_at
        return self.token_count / passed if self.token_count and passed > 0 else None

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


class DecodeProgress:
    """Progress of decoding: the tokens that a local model samples, their rate, and those left.

    Args:
        count_tokens: returns the total number of sampled tokens, unfinished replies included, or
            None where they are not counted.
    """

    def __init__(
        self, count_tokens: Callable[[], int | None], clock: Callable[[], float] = monotonic
    ) -> None:
        self._count_tokens, self._clock = count_tokens, clock
        self._initial_tokens = count_tokens() or 0
        self._readings: deque[tuple[float, int]] = deque([(clock(), 0)])

    @property
    def tokens(self) -> int | None:
        """Tokens sampled since this progress began; None where they are not counted."""
        count = self._count_tokens()
        return None if count is None else count - self._initial_tokens

    @property
    def tokens_per_second(self) -> float | None:
        """The rate over the last `RATE_WINDOW_S`; None before the first token."""
        tokens, now = self.tokens, self._clock()
        if not tokens:
            return None
        readings = self._readings
        readings.append((now, tokens))
        # One reading older than the window is kept: it marks where the window begins.
        while len(readings) > 2 and now - readings[1][0] >= RATE_WINDOW_S:
            readings.popleft()
        since, before = readings[0]
        return (tokens - before) / (now - since) if now > since else None

    def seconds_left(self, limits: EpisodeLimits, **episodes: int) -> float | None:
        """Estimate the time left; None before the first token. Arguments as for `tokens_left`."""
        rate = self.tokens_per_second
        return self.tokens_left(limits, **episodes) / rate if rate else None

    def tokens_left(
        self,
        limits: EpisodeLimits,
        *,
        waiting: int,
        active: int,
        finished: int,
        finished_tokens: int,
    ) -> float:
        """Estimate how many tokens are still to be sampled.

        The mean length of an episode is estimated as all sampled tokens over the finished episodes:
        short episodes finish first, so the mean of the finished ones alone is too low at first. It
        is bounded by the token budget of an episode, which is the only estimate before one has
        finished. Where only the reply is limited, that budget is one reply; once active episodes
        have more than that, it is half a reply more than they have.

        Args:
            waiting: number of episodes that have not started.
            active: number of episodes in progress.
            finished: number of finished episodes, with `finished_tokens` tokens.
        """
        sampled = self.tokens or 0
        so_far = max(0, sampled - finished_tokens) / active if active else 0.0
        if limits.max_episode_tokens is not None:
            budget = float(limits.max_episode_tokens)
        else:
            reply = limits.max_tokens or 0
            mean_finished = finished_tokens / finished if finished else 0.0
            budget = max(mean_finished, reply if so_far <= reply else so_far + reply / 2)
        mean = min(sampled / finished, budget) if finished else budget
        return waiting * mean + active * min(mean, max(0.0, budget - so_far))


class RolloutProgress(PhaseProgress):
    """Progress of episodes that a local model plays concurrently.

    Args:
        count_tokens: as for `DecodeProgress`.
    """

    def __init__(
        self,
        phase: str,
        total: int,
        *,
        limits: EpisodeLimits,
        count_tokens: Callable[[], int | None],
        in_log: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(phase, total, "episodes", in_log=in_log, clock=clock)
        self._episodes, self._limits = total, limits
        self._meter = DecodeProgress(count_tokens, clock)
        self._finished_tokens = 0

    def finish_episode(self, tokens: int) -> None:
        """Count a finished episode, in which the model sampled so many tokens."""
        self.advance(1)
        self._finished_tokens += tokens

    @property
    def tokens(self) -> int | None:
        return self._meter.tokens

    @property
    def tokens_per_second(self) -> float | None:
        return self._meter.tokens_per_second

    @property
    def seconds_left(self) -> float | None:
        return self._meter.seconds_left(
            self._limits, waiting=0, active=self._episodes - self.done,
            finished=self.done, finished_tokens=self._finished_tokens,
        )  # fmt: skip
