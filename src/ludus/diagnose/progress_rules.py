"""Rules about progress: too short, worse, past saturation, saturated, no progress, learned.

Pure functions of the evidence. Each returns a verdict, or None where it does not apply.
"""

from __future__ import annotations

from ludus.diagnose.evidence import RunEvidence
from ludus.diagnose.log_stats import metric_mean
from ludus.diagnose.number_format import format_share
from ludus.diagnose.reward_delta import (
    MIN_DELTA,
    format_delta_interval,
    format_reward,
    format_reward_change,
    format_reward_delta,
)
from ludus.diagnose.verdict import Verdict, good, note, problem

MIN_LOGGED_STEPS = 10
"""Logged steps needed to judge learning: the first five are compared with the last five."""
MIN_FALL = 0.05
"""Fraction of the scale by which a reward must fall from its best window, or rise to it."""
MIN_FALL_STANDARD_ERRORS = 5.0
"""And in standard errors: the best of many windows is partly luck."""
WASTED_STEPS_FRACTION = 0.1
"""Fraction of the run after its saturation that makes saturation a problem."""


def check_too_short(evidence: RunEvidence) -> Verdict | None:
    count = len(evidence.log.entries)
    if count >= MIN_LOGGED_STEPS:
        return None
    return note(
        "too short to tell",
        finding=f"{count} {'step' if count == 1 else 'steps'} with rewards logged, "
        f"{MIN_LOGGED_STEPS} are needed: the first five are compared with the last five",
        advice="let it continue, or train for more `steps`",
    )


def check_reward_fell(evidence: RunEvidence) -> Verdict | None:
    """Past saturation where the reward rose before it fell, else getting worse."""
    log, change = evidence.log, evidence.reward_change
    best, final = log.best_window(), evidence.mean_at_end("reward")
    if best is None or final is None:
        return None
    is_below_start = (
        change.interval is not None
        and change.interval.high < 0
        and change.normalized_delta <= -MIN_DELTA
    )
    if not (is_below_start or _exceeds_noise(evidence, best.reward - final)):
        return None
    if log.held_out_rose:
        # Held-out tasks are the same each time; those of the last steps were harder.
        return None
    if not _exceeds_noise(evidence, best.reward - (evidence.mean_at_start("reward") or 0.0)):
        return problem(
            "getting worse",
            finding=f"reward fell without a certain rise before: {format_reward_change(change)}",
            advice="use a lower `learning_rate`, or more `groups`, which make steps less noisy",
        )
    return problem(
        "past saturation",
        finding=f"reward was best at steps {best.first:,} to {best.last:,} "
        f"({format_reward(best.reward, change.scale)}) and fell to "
        f"{format_reward(final, change.scale)} by step {log.steps:,}",
        advice=f"train again with `steps` set to {best.last} or with `early_stop`, or continue "
        f"from a checkpoint of about step {best.last:,} if you kept one; a lower `learning_rate` "
        "delays the fall",
    )


def _exceeds_noise(evidence: RunEvidence, difference: float) -> bool:
    """Whether the best window differs from another one by more than noise."""
    is_large = evidence.reward_change.scale.normalize_delta(difference) >= MIN_FALL
    return is_large and difference >= MIN_FALL_STANDARD_ERRORS * evidence.log.standard_error


def check_saturated(evidence: RunEvidence) -> Verdict | None:
    """`early_stop` would have ended the run, and nothing was gained after that."""
    log, stop, final = evidence.log, evidence.early_stop, evidence.mean_at_end("reward")
    if stop is None or final is None:
        return None
    at_stop = metric_mean(log.entries_before(stop.step + 1)[-log.window_size :], "reward")
    if at_stop is None:
        return None
    if abs(evidence.reward_change.scale.normalize_delta(final - at_stop)) >= MIN_FALL:
        return None
    finding = f"`early_stop` would have ended it at step {stop.step:,}: {stop.reason}"
    wasted = log.steps - stop.step
    if wasted <= WASTED_STEPS_FRACTION * log.steps:
        return note(
            "saturated",
            finding=finding,
            advice="it ended when it should; to gain more, use harder tasks",
        )
    return problem(
        "saturated",
        finding=f"{finding}; {wasted:,} more steps brought nothing",
        advice=f"stop earlier, with `steps` set to {stop.step} or with `early_stop`; to gain more, "
        "use harder tasks",
    )


def check_no_progress(evidence: RunEvidence) -> Verdict | None:
    change = evidence.reward_change
    if change.delta > 0 and not change.is_unchanged:
        return None
    share = evidence.overall_mean("equal")
    return problem(
        "no progress",
        finding=f"reward did not change with certainty over {evidence.log.steps:,} steps "
        f"({format_reward_change(change)})"
        + (f"; {format_share(share)} of groups had zero variance" if share is not None else ""),
        advice="use four times as many `groups` or more: with few tasks a step mostly learns "
        "noise, and a higher `learning_rate` alone makes that worse",
    )


def check_learned(evidence: RunEvidence) -> Verdict | None:
    change = evidence.reward_change
    if change.delta <= 0 or change.is_unchanged:
        return None
    finding = f"reward rose by {format_reward_delta(change)}"
    if change.interval is not None:
        finding += f" (95 % interval {format_delta_interval(change)})"
    if _is_rising(evidence):
        finding += ", and was still rising at the end"
        return good("learned", finding=finding, advice="more `steps` may bring more")
    advice = "measure it on held-out tasks with `ludus eval`"
    return good("learned", finding=finding, advice=advice)


def _is_rising(evidence: RunEvidence) -> bool:
    """Whether the last window is above the one before it by more than noise."""
    log = evidence.log
    before = metric_mean(log.entries[-2 * log.window_size : -log.window_size], "reward")
    final = evidence.mean_at_end("reward")
    if before is None or final is None or evidence.early_stop is not None:
        return False
    gain = final - before
    is_large = evidence.reward_change.scale.normalize_delta(gain) >= MIN_DELTA
    return is_large and gain > 2 * log.standard_error
