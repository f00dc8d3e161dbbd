"""When a run has nothing left to learn: the one place that knows.

Told of each step as it is logged, so that `--early-stop` can act on it; the verdict of a run that
is over asks the same judge.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, median

from ludus.train.diagnosis.change import Scale
from ludus.train.diagnosis.course import Line, column, entropy_key, figure, mean, step_of

EARLIEST = 20
"""No step before this one ends a run, however good it looks."""
WINDOW = 20
"""Logged steps that must agree: a few good ones in a row may be luck, and stopping is final."""
EQUAL = 0.9
"""The share of groups with equal rewards: of ten groups, at most one still teaches something."""
HARDLY_ANY = 0.97
"""At this share, what is left to learn from is next to nothing whatever the gradient says."""
HIGH = 0.9
"""Of the best reward. Equal groups below it may be tasks that are out of reach by now."""
FLAT = 0.02
"""Of the scale: what the halves of a window may differ by, and how far below its best it may be."""
GONE = 0.25
"""The gradient's norm, beside the highest that it held for some steps."""
RISEN = 1.2
"""Entropy beside its lowest. With no gradient only noise and the KL term are left to move it."""
_HELD = 5
"""Steps over which a beginning, a gradient or an entropy is taken: one may be an accident."""


class Saturation:
    """Judges line by line. A run that goes on shows it the lines from before first."""

    def __init__(self) -> None:
        self._window: deque[Line] = deque(maxlen=WINDOW)
        self._rewards: list[float] = []
        self._gradients: deque[float] = deque(maxlen=_HELD)
        self._entropies: deque[float] = deque(maxlen=_HELD)
        self._entropy = "entropy"
        """Which figure they are: once a line has the better one, that."""
        self._steepest, self._calmest = 0.0, float("inf")
        self._best = float("-inf")
        self._opening: list[Line] = []

    def see(self, line: Line) -> str | None:
        """None: go on. Else why to stop, as one line."""
        if figure(line, "reward") is None or figure(line, "equal") is None:
            return None
        self._take(line)
        if len(self._window) < WINDOW or step_of(line) < EARLIEST:
            return None
        reward = mean(self._window, "reward") or 0.0
        self._best = max(self._best, reward)
        return self._reason(reward) if self._is_saturated(reward) else None

    def _take(self, line: Line) -> None:
        self._window.append(line)
        if len(self._opening) < _HELD:
            self._opening.append(line)
        self._rewards += column([line], "reward")
        self._gradients.append(_gradient(line))
        self._take_entropy(line)
        if len(self._gradients) == _HELD:
            self._steepest = max(self._steepest, median(self._gradients))

    def _take_entropy(self, line: Line) -> None:
        """One of the two figures, and never one beside the other: they cannot be compared."""
        if self._entropy == "entropy" and (found := entropy_key([line])) != self._entropy:
            self._entropy = found
            self._entropies.clear()
            self._calmest = float("inf")
        self._entropies.extend(column([line], self._entropy))
        if len(self._entropies) == _HELD:
            self._calmest = min(self._calmest, fmean(self._entropies))

    def _is_saturated(self, reward: float) -> bool:
        scale = Scale.of(self._rewards)
        return (
            self._equal >= EQUAL
            and self._is_flat(reward, scale)
            and self._is_high(reward, scale)
            and bool(self._signs())
        )

    @property
    def _equal(self) -> float:
        return mean(self._window, "equal") or 0.0

    def _is_flat(self, reward: float, scale: Scale) -> bool:
        rewards = column(self._window, "reward")
        half = len(rewards) // 2
        drift = fmean(rewards[half:]) - fmean(rewards[:half])
        return max(abs(scale.part(drift)), scale.part(self._best - reward)) <= FLAT

    def _is_high(self, reward: float, scale: Scale) -> bool:
        """Near the best that there is; where that is not known, far above where it began."""
        if scale.unit and reward >= HIGH:
            return True
        start, spread = mean(self._opening, "reward"), mean(self._opening, "reward_std")
        return reward - (start or 0.0) > (spread or 0.0)

    def _signs(self) -> list[str]:
        """What else tells that nothing is learned any more."""
        gradient = fmean(_gradient(line) for line in self._window)
        entropy = fmean(self._entropies) if self._entropies else 0.0
        gone = gradient <= GONE * self._steepest > 0
        risen = entropy >= RISEN * self._calmest > 0
        return [
            *(["the gradient is gone"] if gone else []),
            *([f"entropy has risen from {self._calmest:.2g} to {entropy:.2g}"] if risen else []),
            *(["hardly a group is left to learn from"] if self._equal >= HARDLY_ANY else []),
        ]

    def _reason(self, reward: float) -> str:
        steps = step_of(self._window[-1]) - step_of(self._window[0]) + 1
        return (
            f"reward has been at {reward:.2f} for {steps} steps, {100 * self._equal:.0f} % of "
            f"groups are equal, and {self._signs()[0]}"
        )


def _gradient(line: Line) -> float:
    """A step whose episodes teach nothing has one of 0, or logs none."""
    return figure(line, "grad_norm") or 0.0
