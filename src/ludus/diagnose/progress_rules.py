"""Rules about learning: too easy, too hard, format, saturation, no progress, learned.

Pure functions of the evidence. Each returns a verdict, or None where it does not apply.
"""

from __future__ import annotations

from ludus.diagnose.log_stats import logged_zero_variance_share, metric_mean
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
"""Logged steps needed to judge learning: the first five are compared with the last five."""
EASY_REWARD = 0.9
"""Initial reward, as a fraction of the best: what is left to gain is hardly more than noise."""
HARD_REWARD = 0.2
"""Initial reward, as a fraction of the best: below it few groups contain a success."""
HARD_ZERO_VARIANCE_SHARE = 0.5
"""Share of zero-variance groups from which on a task counts as out of reach. With groups of eight
it is reached where one attempt in twelve succeeds."""
MIN_DELTA = 0.03
"""Fraction of the scale. A smaller delta is not progress, however certain it is."""
MIN_UNCERTAIN_DELTA = 0.1
"""Fraction of the scale. A smaller delta does not count while its interval contains 0."""
MIN_FORMAT_SHARE = 0.5
"""Share of episodes with valid calls below which the format, and not the task, is what fails."""
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


def check_format(evidence: RunEvidence) -> Verdict | None:
    """Few calls were valid and the reward stayed low, to the end."""
    start, end = evidence.mean_at_start("format"), evidence.mean_at_end("format")
    change = evidence.reward_change
    if start is None or end is None or max(start, end) > MIN_FORMAT_SHARE:
        return None
    if max(change.normalized_initial, change.scale.normalize(change.final)) > HARD_REWARD:
        return None
    return problem(
        "format is the bottleneck",
        finding=f"only {format_share(start)} of episodes with complete replies made valid calls at "
        f"the start and {format_share(end)} at the end, and reward stayed low "
        f"({format_change(change)})",
        advice="warm-start the model: `ludus collect` with a teacher or the oracle, `ludus "
        "curate`, `ludus train sft`, then GRPO on the resulting model",
    )


def check_too_easy(evidence: RunEvidence) -> list[Verdict]:
    """Applies only where the best possible reward is known: the best seen may be far below it."""
    return [
        problem(
            _verdict_name("too easy", change),
            finding=f"reward started at {format_reward(change.initial, change.scale)}, which "
            f"leaves little to gain ({format_change(change)})",
            advice="make the tasks harder (`task`), or choose another environment",
        )
        for change in _changes_to_check(evidence)
        if change.normalized_initial >= EASY_REWARD and change.scale.is_unit
    ]


def check_too_hard(evidence: RunEvidence) -> list[Verdict]:
    verdicts = []
    for change in _changes_to_check(evidence):
        if change.normalized_initial > HARD_REWARD or change.scale.is_constant:
            continue
        if change is evidence.reward_change:
            share = logged_zero_variance_share(evidence.log.entries)
        else:
            share = evidence.zero_variance_share(change.name)
        if share is None or share < HARD_ZERO_VARIANCE_SHARE or not is_unchanged(change):
            continue
        verdict = problem(
            _verdict_name("too hard", change),
            finding=f"reward started at {format_reward(change.initial, change.scale)} and did not "
            f"change ({format_change(change)}); {format_share(share)} of groups had zero reward "
            "variance and no learning signal",
            advice="make the tasks easier (`task`), give each more attempts (`group_size`), or "
            "warm-start the model with `ludus train sft`",
        )
        verdicts.append(verdict)
    return verdicts


def _changes_to_check(evidence: RunEvidence) -> tuple[RewardChange, ...]:
    """Return each environment's change in a mixture: an easy one would hide a hard one."""
    return evidence.environment_changes or (evidence.reward_change,)


def _verdict_name(name: str, change: RewardChange) -> str:
    return name if change.name == "reward" else f"{name}: {change.name}"


def is_unchanged(change: RewardChange) -> bool:
    """Whether the delta is too small, or too small for how uncertain it is."""
    certain = change.interval is not None and not change.interval.low <= 0 <= change.interval.high
    return abs(change.normalized_delta) < (MIN_DELTA if certain else MIN_UNCERTAIN_DELTA)


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
    if not _exceeds_noise(evidence, best.reward - (evidence.mean_at_start("reward") or 0.0)):
        return problem(
            "getting worse",
            finding=f"reward fell without a certain rise before: {format_change(change)}",
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
    if change.delta > 0 and not is_unchanged(change):
        return None
    share = evidence.overall_mean("equal")
    return problem(
        "no progress",
        finding=f"reward did not change with certainty over {evidence.log.steps:,} steps "
        f"({format_change(change)})"
        + (f"; {format_share(share)} of groups had zero variance" if share is not None else ""),
        advice="use four times as many `groups` or more: with few tasks a step mostly learns "
        "noise, and a higher `learning_rate` alone makes that worse",
    )


def check_learned(evidence: RunEvidence) -> Verdict | None:
    change = evidence.reward_change
    if change.delta <= 0 or is_unchanged(change):
        return None
    finding = f"reward rose by {format_delta(change)}"
    if change.interval is not None:
        finding += f" (95 % interval {format_interval(change)})"
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
