"""Verdicts on what was learned: too easy, too hard, format, past saturation, saturated, learned.

Pure rules over a case. Each gives a verdict, or None where it does not hold.
"""

from __future__ import annotations

from ludus.diagnose.log_stats import BestWindow, logged_zero_variance_share, metric_mean
from ludus.diagnose.number_format import (
    format_change,
    format_delta,
    format_interval,
    format_reward,
    format_share,
)
from ludus.diagnose.reward_delta import RewardChange
from ludus.diagnose.verdict import RunEvidence, Verdict, good, note, problem

MIN_LOGGED_STEPS = 10
"""Logged steps below which nothing is said of learning: five at either end are compared."""
EASY_REWARD = 0.9
"""Of the best reward, at the beginning: what is left to gain is hardly more than noise."""
HARD_REWARD = 0.2
"""Of the best reward, at the beginning: below it few groups hold a success to learn from."""
HARD_ZERO_VARIANCE_SHARE = 0.5
"""The share of equal groups from which on a task counts as out of reach: half of the work is idle.
With eight attempts it is met where one in twelve succeeds."""
MIN_DELTA = 0.03
"""Of the scale: a delta that nobody would call progress, however sure it is."""
MIN_UNCERTAIN_DELTA = 0.1
"""Of the scale: a delta below it is none as long as its interval holds 0."""
MIN_FORMAT_SHARE = 0.5
"""The share of episodes with valid calls under which the form, and not the task, is what fails."""
MIN_FALL = 0.05
"""Of the scale: what a reward must lose from its best to count as fallen, or gain as risen."""
MIN_FALL_STANDARD_ERRORS = 5.0
"""Standard errors that this must be, too: the best of many stretches is partly luck."""
WASTED_STEPS_FRACTION = 0.1
"""The part of a run behind its saturation that is worth a word."""


def check_too_short(evidence: RunEvidence) -> Verdict | None:
    lines = len(evidence.log.entries)
    if lines >= MIN_LOGGED_STEPS:
        return None
    return note(
        "too short to tell",
        finding=f"rewards are logged of {lines} {'step' if lines == 1 else 'steps'}, and {MIN_LOGGED_STEPS} "
        "are needed: five at the beginning are held against five at the end",
        advice="let it run on, or train with more --steps",
    )


def check_format(evidence: RunEvidence) -> Verdict | None:
    """The form is what fails where few calls are valid and nothing is earned, to the end."""
    begins, ends, change = (
        evidence.mean_at_start("format"),
        evidence.mean_at_end("format"),
        evidence.reward_change,
    )
    earned = max(change.normalized_initial, change.scale.normalize(change.final))
    if (
        begins is None
        or ends is None
        or max(begins, ends) > MIN_FORMAT_SHARE
        or earned > HARD_REWARD
    ):
        return None
    return problem(
        "format is the bottleneck",
        finding=f"only {format_share(begins)} of episodes with complete replies made valid calls at first "
        f"and {format_share(ends)} at the end, and reward stayed low ({format_change(change)})",
        advice="warm-start the model: `ludus collect` with a teacher or the oracle, `ludus "
        "curate`, `ludus train sft`, and GRPO on the model that comes of it",
    )


def check_too_easy(evidence: RunEvidence) -> list[Verdict]:
    """Only where the best is known: near the best that was seen, there may be far more to gain."""
    near = [
        change for change in _changes_to_check(evidence) if change.normalized_initial >= EASY_REWARD
    ]
    return [_too_easy_verdict(change) for change in near if change.scale.is_unit]


def _too_easy_verdict(change: RewardChange) -> Verdict:
    return problem(
        _verdict_name("too easy", change),
        finding=f"reward began at {format_reward(change.initial, change.scale)}, which leaves little to "
        f"gain ({format_change(change)})",
        advice="make the tasks harder (--task), or choose another environment",
    )


def check_too_hard(evidence: RunEvidence) -> list[Verdict]:
    found = []
    for change in _changes_to_check(evidence):
        alone = change is evidence.reward_change
        equal = (
            logged_zero_variance_share(evidence.log.entries)
            if alone
            else evidence.zero_variance_share(change.name)
        )
        if (
            _starts_low(change)
            and is_unchanged(change)
            and equal is not None
            and equal >= HARD_ZERO_VARIANCE_SHARE
        ):
            found.append(_too_hard_verdict(change, equal))
    return found


def _starts_low(change: RewardChange) -> bool:
    """Far below the best that was seen, so that there is more to gain whatever the best is."""
    return change.normalized_initial <= HARD_REWARD and not change.scale.is_constant


def _too_hard_verdict(change: RewardChange, zero_variance_share: float) -> Verdict:
    return problem(
        _verdict_name("too hard", change),
        finding=f"reward began at {format_reward(change.initial, change.scale)} and did not move "
        f"({format_change(change)}); in {format_share(zero_variance_share)} of groups all attempts came out alike, so there was "
        "nothing to learn from",
        advice="make the tasks easier (--task), give each more attempts (--group-size), or warm-"
        "start the model with `ludus train sft`",
    )


def _changes_to_check(evidence: RunEvidence) -> tuple[RewardChange, ...]:
    """In a mix each environment by itself: what is easy in one hides what is hard in another."""
    return evidence.environment_changes or (evidence.reward_change,)


def _verdict_name(name: str, change: RewardChange) -> str:
    return name if change.name == "reward" else f"{name}: {change.name}"


def is_unchanged(change: RewardChange) -> bool:
    sure = change.interval is not None and not change.interval.low <= 0 <= change.interval.high
    return abs(change.normalized_delta) < MIN_DELTA or (
        not sure and abs(change.normalized_delta) < MIN_UNCERTAIN_DELTA
    )


def check_reward_fell(evidence: RunEvidence) -> Verdict | None:
    """Past saturation where it had risen before it fell; else it only ever got worse."""
    best, final = evidence.log.best_window(), evidence.mean_at_end("reward")
    if best is None or final is None or not _has_fallen(evidence, best.reward - final):
        return None
    began = metric_mean(evidence.log.first_window, "reward") or 0.0
    return (
        _past_saturation_verdict(evidence, best, final)
        if _exceeds_noise(evidence, best.reward - began)
        else _getting_worse_verdict(evidence)
    )


def _has_fallen(evidence: RunEvidence, lost: float) -> bool:
    change = evidence.reward_change
    below = (
        change.interval is not None
        and change.interval.high < 0
        and change.normalized_delta <= -MIN_DELTA
    )
    return below or _exceeds_noise(evidence, lost)


def _exceeds_noise(evidence: RunEvidence, difference: float) -> bool:
    """Whether the best stretch differs from another by more than its luck."""
    large = evidence.reward_change.scale.normalize_delta(difference) >= MIN_FALL
    return large and difference >= MIN_FALL_STANDARD_ERRORS * evidence.log.standard_error


def _past_saturation_verdict(evidence: RunEvidence, best: BestWindow, final: float) -> Verdict:
    scale = evidence.reward_change.scale
    return problem(
        "past saturation",
        finding=f"reward was best at steps {best.first:,} to {best.last:,} "
        f"({format_reward(best.reward, scale)}) and fell to {format_reward(final, scale)} by step "
        f"{evidence.log.steps:,}",
        advice=f"train again with --steps {best.last} or with --early-stop, or go on from a "
        f"checkpoint of about step {best.last:,} if you kept one; a lower --learning-rate falls "
        "later",
    )


def _getting_worse_verdict(evidence: RunEvidence) -> Verdict:
    return problem(
        "getting worse",
        finding=f"reward fell, and had not risen for sure before: {format_change(evidence.reward_change)}",
        advice="use a lower --learning-rate, or more --groups, of which a step learns less by "
        "chance",
    )


def check_saturated(evidence: RunEvidence) -> Verdict | None:
    """The judge of `--early-stop` would have ended the run, and nothing was gained after that."""
    stop, scale, steps = evidence.early_stop, evidence.reward_change.scale, evidence.log.steps
    then = (
        metric_mean(
            evidence.log.entries_before(stop.step + 1)[-evidence.log.window_size :], "reward"
        )
        if stop
        else None
    )
    final = evidence.mean_at_end("reward")
    if (
        stop is None
        or then is None
        or final is None
        or abs(scale.normalize_delta(final - then)) >= MIN_FALL
    ):
        return None
    idle = steps - stop.step
    wasted = idle > WASTED_STEPS_FRACTION * steps
    return (problem if wasted else note)(
        "saturated",
        finding=f"--early-stop would have ended it at step {stop.step:,}: {stop.reason}"
        + (f"; {idle:,} more steps brought nothing" if wasted else ""),
        advice=f"stop earlier: --steps {stop.step} or --early-stop; to gain more, use harder tasks"
        if wasted
        else "it ended when it should; to gain more, use harder tasks",
    )


def check_no_progress(evidence: RunEvidence) -> Verdict | None:
    change = evidence.reward_change
    if change.delta > 0 and not is_unchanged(change):
        return None
    equal = evidence.overall_mean("equal")
    alike = f", with {format_share(equal)} of groups equal" if equal is not None else ""
    return problem(
        "no progress",
        finding=f"reward did not move for sure over {evidence.log.steps:,} steps ({format_change(change)})"
        f"{alike}",
        advice="use more --groups, four times as many or more: of few tasks a step learns their "
        "luck, and a higher --learning-rate alone makes that worse",
    )


def check_learned(evidence: RunEvidence) -> Verdict | None:
    change, rising = evidence.reward_change, _is_rising(evidence)
    if change.delta <= 0 or is_unchanged(change):
        return None
    sure = f" (95 % interval {format_interval(change)})" if change.interval is not None else ""
    return good(
        "learned",
        finding=f"reward rose by {format_delta(change)}{sure}"
        + (", and was still rising at the end" if rising else ""),
        advice="more --steps may bring more"
        if rising
        else "measure it on held-out tasks with `ludus eval`",
    )


def _is_rising(evidence: RunEvidence) -> bool:
    """Whether the last stretch is above the one before it by more than noise."""
    course = evidence.log
    before = metric_mean(course.entries[-2 * course.window_size : -course.window_size], "reward")
    final = evidence.mean_at_end("reward")
    if before is None or final is None or evidence.early_stop is not None:
        return False
    gain = final - before
    return (
        evidence.reward_change.scale.normalize_delta(gain) >= MIN_DELTA
        and gain > 2 * course.standard_error
    )
