"""What became of a GRPO run: its figures, and the verdicts on them, the weightiest first.

Pure: a log and episodes go in, a diagnosis comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ludus.train.diagnosis import learning, limits, trouble
from ludus.train.diagnosis.change import Change, change_of, parts_of
from ludus.train.diagnosis.course import Course, Line, Plateau, column, mean
from ludus.train.diagnosis.played import Played
from ludus.train.diagnosis.verdict import Case, Verdict, stop_of

FIGURES = (
    *("reward_std", "equal", "trained", "format", "done"),
    *("cut_off", "out_of_turns", "unscored", "unseeded"),
    *("length", "turns", "entropy", "surprise", "grad_norm", "kl"),
)
"""Of the log, at both ends of the run."""
PHASES = ("rollout", "model", "environment", "train", "step")
_NOTHING = Played()

Rule = Callable[[Case], Verdict | None]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What became of a run."""

    steps: int
    """All that were made."""
    window: int
    """Logged steps of the beginning and of the end, which are compared: those with a reward."""
    reward: Change | None
    """None: no episode was scored."""
    parts: tuple[Change, ...]
    """Environments of a mix, and reward functions."""
    figures: Mapping[str, tuple[float, float]]
    """At the beginning and at the end."""
    seconds: Mapping[str, float]
    """Of a step, by phase, as a mean over the run."""
    curve: tuple[float, ...]
    """The reward of each logged step."""
    best: Plateau | None
    held_out: tuple[tuple[int, float], ...]
    verdicts: tuple[Verdict, ...]


def diagnose(lines: Iterable[Line], episodes: Played = _NOTHING, *, made: int = 0) -> Diagnosis:
    """Judge a run by its log and its episodes; it may still be under way.

    `made` are the steps of one that has ended.
    """
    course = Course.of(lines, made=made)
    if not course.lines:
        return Diagnosis(0, 0, None, (), {}, {}, (), None, course.held_out, ())
    change, parts = change_of(course, episodes), parts_of(course, episodes)
    return Diagnosis(
        steps=course.steps,
        window=course.edge,
        reward=change,
        parts=parts,
        figures=_figures(course),
        seconds=_seconds(course),
        curve=tuple(column(course.lines, "reward")),
        best=course.plateau(),
        held_out=course.held_out,
        verdicts=tuple(_verdicts(course, episodes, change, parts)),
    )


def _figures(course: Course) -> dict[str, tuple[float, float]]:
    found = {key: (mean(course.beginning, key), mean(course.end, key)) for key in FIGURES}
    return {
        key: (first, last)
        for key, (first, last) in found.items()
        if first is not None and last is not None
    }


def _seconds(course: Course) -> dict[str, float]:
    found = {phase: mean(course.lines, f"time/{phase}") for phase in PHASES}
    return {phase: seconds for phase, seconds in found.items() if seconds is not None}


def _verdicts(
    course: Course, episodes: Played, change: Change | None, parts: tuple[Change, ...]
) -> list[Verdict]:
    """What holds, in the order of what to mend first."""
    first = [
        limits.cut_off(course, episodes),
        trouble.unstable(course),
        trouble.unscored(course, episodes),
        trouble.unseeded(course),
    ]
    found = [verdict for verdict in first if verdict is not None]
    if change is None:
        return found
    mixed = episodes.environments if len(episodes.environments) > 1 else ()
    environments = tuple(part for part in parts if part.name in mixed)
    case = Case(course, episodes, change, environments, stop_of(course))
    short = learning.too_short(case)
    return [*found, short] if short else [*found, *_judged(case)]


def _judged(case: Case) -> list[Verdict]:
    outcome = _of(case, learning.learned)
    if limits.mostly_cut_off(case.course):
        # Low and equal rewards follow from that, and say nothing of the tasks or the model.
        return [*_of(case, learning.format_fails, learning.fallen), *outcome]
    cause = _of(case, learning.format_fails)
    cause = cause or [*learning.too_hard(case), *learning.too_easy(case)]
    later = _of(case, learning.fallen, trouble.entropy_collapse, trouble.low_entropy)
    # What is too easy or too hard has equal groups for that very reason.
    if not cause:
        later += _of(case, trouble.dead_groups)
    if not cause or case.environments:
        later += _of(case, learning.saturated)
    if not (cause or later or outcome):
        outcome = _of(case, learning.no_progress)
    return [*cause, *later, *_of(case, limits.out_of_turns), *outcome]


def _of(case: Case, *rules: Rule) -> list[Verdict]:
    return [found for rule in rules if (found := rule(case)) is not None]
