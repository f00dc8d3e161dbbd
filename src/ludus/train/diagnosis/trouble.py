"""Verdicts on what hindered a run: numbers that break, faults, entropy, dead groups, cut replies.

Pure rules. Each gives a verdict, or None where it does not hold.
"""

from __future__ import annotations

from statistics import median

from ludus.data.episode import StopReason
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
from ludus.train.diagnosis.verdict import Case, Verdict, problem

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
LOW = 0.5
"""Of the best reward. Above it a policy may well have become sure because it is right."""
DEAD_GROUPS = 0.6
"""The share of equal groups that makes a run mostly idle."""
CUT = 0.2
"""The share of episodes at a limit: one in five is no accident, and is scored for its length."""


_RAMBLING = ", unless the model rambles: then a warm start teaches it to end"
_NO_ROOM = (
    "use fewer --max-turns, tasks that show less (--task), or a model that reads more: with more "
    "tokens they would not go on"
)


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


def unscored(course: Course, played: Played) -> Verdict | None:
    part = mean(course.lines, "unscored")
    if part is None or part < UNSCORED:
        return None
    last = played.broken
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


def _line(message: str) -> str:
    """A fault's words as the end of a sentence."""
    words = " ".join(message.split())
    return words.removesuffix(".") if len(words) <= _SHOWN else f"{words[: _SHOWN - 3]}..."


def entropy_collapse(case: Case) -> Verdict | None:
    """By the middle of the run, and to its end, while there was much left to gain."""
    lines = case.course.lines
    key = entropy_key(lines)
    begins, ends = case.begins(key), case.ends(key)
    half, edge = len(lines) // 2, case.course.edge
    middle = mean(lines[max(0, half - edge) : half], key)
    if begins is None or ends is None or middle is None:
        return None
    gone = max(middle, ends) <= max(COLLAPSED, LOST * begins)
    scale = case.change.scale
    if not gone or scale.blank or scale.place(case.change.final) > LOW:
        return None
    return problem(
        "entropy collapse",
        finding=f"entropy went from {begins:.2g} to {middle:.2g} by step "
        f"{step_of(lines[half - 1]):,}: attempts hardly differ, and reward is still low",
        advice="use a lower --learning-rate or a higher --temperature",
    )


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


def cut_off(case: Case) -> Verdict | None:
    part = case.ends("cut")
    if part is None or part < CUT:
        return None
    limit, advice = _limit(case.played)
    return problem(
        "cut off",
        finding=f"{share(part)} of episodes at the end of the run ended at {limit}",
        advice=advice,
    )


def _limit(played: Played) -> tuple[str, str]:
    """The limit that most episodes ended at, and what to do about it."""
    tokens = played.stops.get(StopReason.MAX_TOKENS, 0) - played.full
    turns = played.stops.get(StopReason.MAX_TURNS, 0)
    if played.full > max(tokens, turns):
        return "the end of the model's context", _NO_ROOM
    if tokens == turns:
        return (
            "the limit of tokens or turns",
            f"raise --max-episode-tokens or --max-turns{_RAMBLING}",
        )
    if tokens > turns:
        return "the limit of tokens", f"raise --max-episode-tokens{_RAMBLING}"
    return "the limit of turns", f"raise --max-turns{_RAMBLING}"
