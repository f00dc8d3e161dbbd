"""Verdicts on what hindered a run: numbers that break, faults, entropy, dead groups.

Pure rules. Each gives a verdict, or None where it does not hold.
"""

from __future__ import annotations

from statistics import median

from ludus.train.diagnosis.course import (
    Course,
    Line,
    column,
    entropy_key,
    equal_part,
    figure,
    mean,
    step_of,
)
from ludus.train.diagnosis.figures import share
from ludus.train.diagnosis.played import Played
from ludus.train.diagnosis.verdict import Case, Verdict, note, problem

UNSCORED = 0.02
"""The share of episodes that faults may end: each one makes its group smaller, and costs time."""
SPIKE = 10.0
"""A gradient's norm or a loss beside the median of the steps before it."""
CLIPPED = 1.0
"""Gradients are clipped to this norm, so what spikes below it does no harm."""
OFTEN = 3
"""Spikes that are no accident."""
_SHOWN = 300
"""Characters of a fault."""
_BEFORE, _ENOUGH = 20, 5
"""Steps that a spike is held against, at most and at least."""
COLLAPSED = 0.02
"""Nats for each token: at this entropy nearly all attempts at a task are the same."""
LOST = 0.1
"""Entropy beside that at the beginning, below which there is nothing left to explore with."""
FALL = 0.5
"""Of the entropy at the beginning: what is above it has not fallen, however low it is."""
LOW = 0.5
"""Of the best reward. Above it a policy may well have become sure because it is right."""
DEAD_GROUPS = 0.6
"""The share of equal groups that makes a run mostly idle."""


def unstable(course: Course) -> Verdict | None:
    lines = course.lines
    blank, wild = _blank(lines), sorted({*_spikes(lines, "grad_norm"), *_spikes(lines, "loss")})
    if not blank and len(wild) < OFTEN:
        return None
    found = [
        *([f"{_steps(blank)} had a loss or a gradient that is no number"] if blank else []),
        *([f"{_steps(wild)} spiked to {SPIKE:.0f} times the usual"] if len(wild) >= OFTEN else []),
    ]
    return problem(
        "unstable",
        finding=" and ".join(found),
        advice="use a lower --learning-rate, and --precision fp32 where numbers are lost",
    )


def _blank(lines: tuple[Line, ...]) -> list[int]:
    """Steps that had something to learn from and have no loss or gradient, where others have.

    Where no episode teaches anything (`trained` is 0), nothing is expected of them.
    """
    keys = [key for key in ("loss", "grad_norm") if column(lines, key)]
    return [
        step_of(line)
        for line in lines
        if figure(line, "trained") != 0 and any(figure(line, key) is None for key in keys)
    ]


def _spikes(lines: tuple[Line, ...], key: str) -> list[int]:
    found = []
    sizes = [(step_of(line), abs(figure(line, key) or 0.0)) for line in lines]
    for at, (step, size) in enumerate(sizes):
        before = [value for _, value in sizes[max(0, at - _BEFORE) : at] if value > 0]
        if len(before) >= _ENOUGH and size > max(CLIPPED, SPIKE * median(before)):
            found.append(step)
    return found


def _steps(steps: list[int]) -> str:
    named = ", ".join(f"{step:,}" for step in steps[:3])
    more = ", ..." if len(steps) > 3 else ""
    return f"{len(steps):,} {'step' if len(steps) == 1 else 'steps'} ({named}{more})"


def unscored(course: Course, episodes: Played) -> Verdict | None:
    part = mean(course.lines, "unscored")
    if part is None or part < UNSCORED:
        return None
    last = episodes.broken
    fault = last.fault if last is not None else None
    example = f" with `ludus show RUN {last.name}`" if last is not None else ""
    return problem(
        "unscored episodes",
        finding=f"{share(part)} of episodes were ended by a fault and scored for nobody"
        + (f", the last by this: {_line(fault.message)}" if fault is not None else ""),
        advice=f"look at one{example}: it was the model's side that failed"
        if fault is not None and fault.where == "model"
        else f"look at one{example}, and at the environment's server: its log, its sessions, its "
        "time limits",
    )


def unseeded(course: Course) -> Verdict | None:
    part = mean(course.lines, "unseeded")
    if not part:
        return None
    return note(
        "unseeded groups",
        finding=f"in {share(part)} of groups the attempts were at different tasks, because the "
        "environment ignores its seed: what sets them apart is partly the luck of the task",
        advice="let its reset draw everything from the seed, or use a larger --group-size",
    )


def _line(message: str) -> str:
    """A fault's words as the end of a sentence."""
    words = " ".join(message.split())
    return words.removesuffix(".") if len(words) <= _SHOWN else f"{words[: _SHOWN - 3]}..."


def entropy_collapse(case: Case) -> Verdict | None:
    """It fell by the middle of the run, and stayed low, while there was much left to gain."""
    found = _entropies(case)
    if found is None or not _is_low_reward(case):
        return None
    begins, middle, ends = found
    low = max(middle, ends)
    if low > max(COLLAPSED, LOST * begins) or low > FALL * begins:
        return None
    lines = case.course.lines
    return problem(
        "entropy collapse",
        finding=f"entropy went from {begins:.2g} to {middle:.2g} by step "
        f"{step_of(lines[len(lines) // 2 - 1]):,}: attempts hardly differ, and reward is still low",
        advice="use a lower --learning-rate or a higher --temperature",
    )


def low_entropy(case: Case) -> Verdict | None:
    """It was low from the beginning: training did not do that."""
    found = _entropies(case)
    if found is None or max(found) > COLLAPSED or not _is_low_reward(case):
        return None
    if entropy_collapse(case) is not None:
        return None
    begins, _, ends = found
    return problem(
        "low entropy",
        finding=f"entropy was {begins:.2g} at the beginning and {ends:.2g} at the end: attempts at "
        "a task hardly differ, so that there is little to learn from",
        advice="use a higher --temperature, or a warm start that was trained for fewer epochs",
    )


def _entropies(case: Case) -> tuple[float, float, float] | None:
    """At the beginning, in the middle and at the end of the run."""
    lines = case.course.lines
    key, half, edge = entropy_key(lines), len(lines) // 2, case.course.edge
    begins, ends = case.begins(key), case.ends(key)
    middle = mean(lines[max(0, half - edge) : half], key)
    if begins is None or ends is None or middle is None:
        return None
    return begins, middle, ends


def _is_low_reward(case: Case) -> bool:
    scale = case.change.scale
    return not scale.blank and scale.place(case.change.final) <= LOW


def dead_groups(case: Case) -> Verdict | None:
    """In both halves of what came before saturation, which has equal groups of its own."""
    course = case.course
    lines = course.before(case.stop.step) if case.stop else course.lines
    half = len(lines) // 2
    halves = [equal_part(lines[:half]), equal_part(lines[half:])]
    parts = [part for part in halves if part is not None]
    if len(parts) < 2 or min(parts) < DEAD_GROUPS:
        return None
    return problem(
        "dead groups",
        finding=f"{share(sum(parts) / 2)} of groups had equal rewards all through the run and "
        "taught nothing",
        advice="use more attempts at each task (--group-size), tasks of another difficulty "
        "(--task), or --equal resample",
    )
