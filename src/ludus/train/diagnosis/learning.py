"""Verdicts on what was learned: too easy, too hard, format, past saturation, saturated, learned.

Pure rules over a case. Each gives a verdict, or None where it does not hold.
"""

from __future__ import annotations

from ludus.train.diagnosis.change import Change
from ludus.train.diagnosis.course import Plateau, equal_part, mean
from ludus.train.diagnosis.figures import bounds, brief, points, reward, share
from ludus.train.diagnosis.verdict import Case, Verdict, good, note, problem

TELLING = 10
"""Logged steps below which nothing is said of learning: five at either end are compared."""
EASY = 0.9
"""Of the best reward, at the beginning: what is left to gain is hardly more than noise."""
HARD = 0.2
"""Of the best reward, at the beginning: below it few groups hold a success to learn from."""
DEAD = 0.5
"""The share of equal groups from which on a task counts as out of reach: half of the work is idle.
With eight attempts it is met where one in twelve succeeds."""
STILL = 0.03
"""Of the scale: a delta that nobody would call progress, however sure it is."""
UNSURE = 0.1
"""Of the scale: a delta below it is none as long as its interval holds 0."""
MALFORMED = 0.5
"""The share of episodes with valid calls under which the form, and not the task, is what fails."""
FALLEN = 0.05
"""Of the scale: what a reward must lose from its best to count as fallen, or gain as risen."""
CERTAIN = 5.0
"""Standard errors that this must be, too: the best of many stretches is partly luck."""
LEFT = 0.1
"""The part of a run behind its saturation that is worth a word."""


def too_short(case: Case) -> Verdict | None:
    lines = len(case.course.lines)
    if lines >= TELLING:
        return None
    return note(
        "too short to tell",
        finding=f"rewards are logged of {lines} {'step' if lines == 1 else 'steps'}, and {TELLING} "
        "are needed: five at the beginning are held against five at the end",
        advice="let it run on, or train with more --steps",
    )


def format_fails(case: Case) -> Verdict | None:
    """The form is what fails where few calls are valid and nothing is earned, to the end."""
    begins, ends, change = case.begins("format"), case.ends("format"), case.change
    earned = max(change.place, change.scale.place(change.final))
    if begins is None or ends is None or max(begins, ends) > MALFORMED or earned > HARD:
        return None
    return problem(
        "format is the bottleneck",
        finding=f"only {share(begins)} of episodes with complete replies made valid calls at first "
        f"and {share(ends)} at the end, and reward stayed low ({brief(change)})",
        advice="warm-start the model: `ludus collect` with a teacher or the oracle, `ludus "
        "curate`, `ludus train sft`, and GRPO on the model that comes of it",
    )


def too_easy(case: Case) -> list[Verdict]:
    """Only where the best is known: near the best that was seen, there may be far more to gain."""
    near = [change for change in _judged(case) if change.place >= EASY]
    return [_easy(change) for change in near if change.scale.unit]


def _easy(change: Change) -> Verdict:
    return problem(
        _titled("too easy", change),
        finding=f"reward began at {reward(change.initial, change.scale)}, which leaves little to "
        f"gain ({brief(change)})",
        advice="make the tasks harder (--task), or choose another environment",
    )


def too_hard(case: Case) -> list[Verdict]:
    found = []
    for change in _judged(case):
        alone = change is case.change
        equal = equal_part(case.course.lines) if alone else case.equal(change.name)
        if _is_low(change) and is_still(change) and equal is not None and equal >= DEAD:
            found.append(_hard(change, equal))
    return found


def _is_low(change: Change) -> bool:
    """Far below the best that was seen, so that there is more to gain whatever the best is."""
    return change.place <= HARD and not change.scale.blank


def _hard(change: Change, equal: float) -> Verdict:
    return problem(
        _titled("too hard", change),
        finding=f"reward began at {reward(change.initial, change.scale)} and did not move "
        f"({brief(change)}); in {share(equal)} of groups all attempts came out alike, so there was "
        "nothing to learn from",
        advice="make the tasks easier (--task), give each more attempts (--group-size), or warm-"
        "start the model with `ludus train sft`",
    )


def _judged(case: Case) -> tuple[Change, ...]:
    """In a mix each environment by itself: what is easy in one hides what is hard in another."""
    return case.environments or (case.change,)


def _titled(name: str, change: Change) -> str:
    return name if change.name == "reward" else f"{name}: {change.name}"


def is_still(change: Change) -> bool:
    sure = change.interval is not None and not change.interval.low <= 0 <= change.interval.high
    return abs(change.part) < STILL or (not sure and abs(change.part) < UNSURE)


def fallen(case: Case) -> Verdict | None:
    """Past saturation where it had risen before it fell; else it only ever got worse."""
    best, final = case.course.plateau(), case.ends("reward")
    if best is None or final is None or not _has_fallen(case, best.reward - final):
        return None
    began = mean(case.course.beginning, "reward") or 0.0
    return _past(case, best, final) if _is_certain(case, best.reward - began) else _worse(case)


def _has_fallen(case: Case, lost: float) -> bool:
    change = case.change
    below = change.interval is not None and change.interval.high < 0 and change.part <= -STILL
    return below or _is_certain(case, lost)


def _is_certain(case: Case, difference: float) -> bool:
    """Whether the best stretch differs from another by more than its luck."""
    large = case.change.scale.part(difference) >= FALLEN
    return large and difference >= CERTAIN * case.course.noise


def _past(case: Case, best: Plateau, final: float) -> Verdict:
    scale = case.change.scale
    return problem(
        "past saturation",
        finding=f"reward was best at steps {best.first:,} to {best.last:,} "
        f"({reward(best.reward, scale)}) and fell to {reward(final, scale)} by step "
        f"{case.course.steps:,}",
        advice=f"train again with --steps {best.last} or with --early-stop, or go on from a "
        f"checkpoint of about step {best.last:,} if you kept one; a lower --learning-rate falls "
        "later",
    )


def _worse(case: Case) -> Verdict:
    return problem(
        "getting worse",
        finding=f"reward fell, and had not risen for sure before: {brief(case.change)}",
        advice="use a lower --learning-rate, or more --groups, of which a step learns less by "
        "chance",
    )


def saturated(case: Case) -> Verdict | None:
    """The judge of `--early-stop` would have ended the run, and nothing was gained after that."""
    stop, scale, steps = case.stop, case.change.scale, case.course.steps
    then = mean(case.course.before(stop.step + 1)[-case.course.edge :], "reward") if stop else None
    final = case.ends("reward")
    if stop is None or then is None or final is None or abs(scale.part(final - then)) >= FALLEN:
        return None
    idle = steps - stop.step
    wasted = idle > LEFT * steps
    return (problem if wasted else note)(
        "saturated",
        finding=f"--early-stop would have ended it at step {stop.step:,}: {stop.reason}"
        + (f"; {idle:,} more steps brought nothing" if wasted else ""),
        advice=f"stop earlier: --steps {stop.step} or --early-stop; to gain more, use harder tasks"
        if wasted
        else "it ended when it should; to gain more, use harder tasks",
    )


def no_progress(case: Case) -> Verdict | None:
    change = case.change
    if change.delta > 0 and not is_still(change):
        return None
    equal = case.throughout("equal")
    alike = f", with {share(equal)} of groups equal" if equal is not None else ""
    return problem(
        "no progress",
        finding=f"reward did not move for sure over {case.course.steps:,} steps ({brief(change)})"
        f"{alike}",
        advice="use more --groups, four times as many or more: of few tasks a step learns their "
        "luck, and a higher --learning-rate alone makes that worse",
    )


def learned(case: Case) -> Verdict | None:
    change, rising = case.change, _rising(case)
    if change.delta <= 0 or is_still(change):
        return None
    sure = f" (95 % interval {bounds(change)})" if change.interval is not None else ""
    return good(
        "learned",
        finding=f"reward rose by {points(change)}{sure}"
        + (", and was still rising at the end" if rising else ""),
        advice="more --steps may bring more"
        if rising
        else "measure it on held-out tasks with `ludus eval`",
    )


def _rising(case: Case) -> bool:
    """Whether the last stretch is above the one before it by more than noise."""
    course = case.course
    before = mean(course.lines[-2 * course.edge : -course.edge], "reward")
    final = case.ends("reward")
    if before is None or final is None or case.stop is not None:
        return False
    gain = final - before
    return case.change.scale.part(gain) >= STILL and gain > 2 * course.noise
