"""A verdict on a run, and the case that the rules judge. What the rules are is not known here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from ludus.train.diagnosis.change import Change, ends
from ludus.train.diagnosis.course import Course, mean, step_of
from ludus.train.diagnosis.played import Played, equal_share
from ludus.train.diagnosis.saturation import Saturation


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is so, the numbers behind it, and what to change."""

    name: str
    kind: Literal["problem", "note", "good"]
    finding: str
    advice: str


problem = partial(Verdict, kind="problem")
note = partial(Verdict, kind="note")
good = partial(Verdict, kind="good")


@dataclass(frozen=True, slots=True)
class Stop:
    """Where `--early-stop` would have ended the run, and why."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Case:
    """What a run is judged by."""

    course: Course
    episodes: Played
    change: Change
    """Of the whole reward."""
    environments: tuple[Change, ...]
    """Of each environment, in a mix."""
    stop: Stop | None

    def begins(self, key: str) -> float | None:
        """A figure's mean over the run's beginning."""
        return mean(self.course.beginning, key)

    def ends(self, key: str) -> float | None:
        return mean(self.course.end, key)

    def throughout(self, key: str) -> float | None:
        return mean(self.course.lines, key)

    def equal(self, environment: str) -> float | None:
        """The share of equal groups in one environment of a mix, at both ends of the run."""
        first, last = ends(self.course, self.episodes, environment)
        return equal_share([*first, *last])


def stop_of(course: Course) -> Stop | None:
    judge = Saturation()
    for line in course.lines:
        if (reason := judge.see(line)) is not None:
            return Stop(step_of(line), reason)
    return None
