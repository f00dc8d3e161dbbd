"""Rules about what a run learned: progress, difficulty of the tasks, groups, entropy, curriculum.

Pure functions. Each returns a verdict or several, or None if it does not apply. In a mixture, the
difficulty of each environment is checked separately.
"""

from __future__ import annotations

from collections.abc import Sequence

from ludus.data.training_log import entropy_key, step_number
from ludus.diagnose.reward_delta import (
    MIN_DELTA,
    RewardChange,
    format_delta_interval,
    format_reward,
    format_reward_change,
    format_reward_delta,
    format_share,
)
from ludus.diagnose.step_log import BucketStats, StepLog, logged_zero_variance_share, metric_mean
from ludus.diagnose.verdict import RunEvidence, Verdict, good, note, problem

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
    """Past saturation if the reward rose before it fell, else getting worse."""
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
    share = evidence.overall_mean("zero_variance")
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


EASY_REWARD = 0.9
"""Initial reward, as a fraction of the best: what is left to gain is hardly more than noise."""
HARD_REWARD = 0.2
"""Initial reward, as a fraction of the best: below it few groups contain a success."""
HARD_ZERO_VARIANCE_SHARE = 0.5
"""Share of zero-variance groups from which on a task counts as out of reach. With groups of eight
it is reached if one attempt in twelve succeeds."""


def check_too_easy(evidence: RunEvidence) -> list[Verdict]:
    """Applies only if the best possible reward is known: the best seen may be far below it."""
    return [
        problem(
            _difficulty_name("too easy", change),
            finding=f"reward started at {format_reward(change.initial, change.scale)}, which "
            f"leaves little to gain ({format_reward_change(change)})",
            advice="make the tasks harder (`task`), or choose another environment",
        )
        for change in _changes_to_check(evidence)
        if change.normalized_initial >= EASY_REWARD and change.scale.is_unit
    ]


def check_too_hard(evidence: RunEvidence) -> list[Verdict]:
    """The reward started low and did not change, and most groups had zero variance."""
    verdicts = []
    for change in _changes_to_check(evidence):
        if change.normalized_initial > HARD_REWARD or change.scale.is_constant:
            continue
        if change is evidence.reward_change:
            share = logged_zero_variance_share(evidence.log.entries)
        else:
            share = evidence.zero_variance_share(change.name)
        if share is None or share < HARD_ZERO_VARIANCE_SHARE or not change.is_unchanged:
            continue
        verdict = problem(
            _difficulty_name("too hard", change),
            finding=f"reward started at {format_reward(change.initial, change.scale)} and did not "
            f"change ({format_reward_change(change)}); {format_share(share)} of groups had zero "
            "reward variance and no learning signal",
            advice="make the tasks easier (`task`), give each more attempts (`group_size`), or "
            "warm-start the model with `ludus train sft`",
        )
        verdicts.append(verdict)
    return verdicts


def _changes_to_check(evidence: RunEvidence) -> tuple[RewardChange, ...]:
    """Return each environment's change in a mixture: an easy one would hide a hard one."""
    return evidence.environment_changes or (evidence.reward_change,)


def _difficulty_name(name: str, change: RewardChange) -> str:
    """Return the name of a verdict on the difficulty, with the environment in a mixture."""
    return name if change.name == "reward" else f"{name}: {change.name}"


DEAD_GROUPS_SHARE = 0.6
"""Share of zero-variance groups from which on most of the work is wasted."""


def check_dead_groups(evidence: RunEvidence) -> Verdict | None:
    """Most groups had zero variance in both halves of the run, up to its saturation."""
    log, stop = evidence.log, evidence.early_stop
    entries = log.entries_before(stop.step) if stop else log.entries
    half = len(entries) // 2
    first, second = map(logged_zero_variance_share, (entries[:half], entries[half:]))
    if first is None or second is None or min(first, second) < DEAD_GROUPS_SHARE:
        return None
    return problem(
        "dead groups",
        finding=f"{format_share((first + second) / 2)} of groups had zero reward variance "
        "throughout the run and no learning signal",
        advice="use more attempts at each task (`group_size`), tasks of another difficulty "
        "(`task`), or `zero_variance_groups` resample",
    )


def check_unseeded(log: StepLog) -> Verdict | None:
    """The attempts of some groups were at different tasks."""
    share = metric_mean(log.entries, "unseeded")
    if not share:
        return None
    return note(
        "unseeded groups",
        finding=f"in {format_share(share)} of groups the attempts were at different tasks, because "
        "the environment ignores its seed: their rewards differ partly by the luck of the task",
        advice="draw everything in the environment's reset() from the seed, or use a larger "
        "`group_size`",
    )


COLLAPSED_ENTROPY_NATS = 0.02
"""Per token. At this entropy nearly all attempts at a task are the same."""
COLLAPSED_ENTROPY_RATIO = 0.1
"""Entropy relative to the start, below which no exploration is left."""
ENTROPY_FALL_RATIO = 0.5
"""Entropy relative to the start: above it, the entropy has not fallen, however low it is."""
LOW_REWARD = 0.5
"""Fraction of the best reward. Above it, low entropy may mean that the policy is right."""


def check_entropy_collapse(evidence: RunEvidence) -> Verdict | None:
    """Entropy fell by the middle of the run and stayed low, while the reward was low."""
    entropies = _entropies_at_low_reward(evidence)
    if entropies is None:
        return None
    start, middle, end = entropies
    low = max(middle, end)
    collapsed = max(COLLAPSED_ENTROPY_NATS, COLLAPSED_ENTROPY_RATIO * start)
    if low > min(collapsed, ENTROPY_FALL_RATIO * start):
        return None
    entries = evidence.log.entries
    middle_step = step_number(entries[len(entries) // 2 - 1])
    return problem(
        "entropy collapse",
        finding=f"entropy went from {start:.2g} to {middle:.2g} by step {middle_step:,}: attempts "
        "hardly differ, and reward is still low",
        advice="use a lower `learning_rate` or a higher `temperature`",
    )


def check_low_entropy(evidence: RunEvidence) -> Verdict | None:
    """Entropy was low from the start, so training did not cause it."""
    entropies = _entropies_at_low_reward(evidence)
    if entropies is None or max(entropies) > COLLAPSED_ENTROPY_NATS:
        return None
    if check_entropy_collapse(evidence) is not None:
        return None
    start, _, end = entropies
    return problem(
        "low entropy",
        finding=f"entropy was {start:.2g} at the start and {end:.2g} at the end: attempts at a "
        "task hardly differ, so there is little to learn from",
        advice="use a higher `temperature`, or a warm start that was trained for fewer epochs",
    )


def _entropies_at_low_reward(evidence: RunEvidence) -> tuple[float, float, float] | None:
    """Return the entropy at the start, in the middle and at the end of a run with low reward.

    None if the reward is high, because low entropy is right then, and where none is logged.
    """
    scale = evidence.reward_change.scale
    if scale.is_constant or scale.normalize(evidence.reward_change.final) > LOW_REWARD:
        return None
    entries = evidence.log.entries
    key, half, size = entropy_key(entries), len(entries) // 2, evidence.log.window_size
    start, end = evidence.mean_at_start(key), evidence.mean_at_end(key)
    middle = metric_mean(entries[max(0, half - size) : half], key)
    if start is None or end is None or middle is None:
        return None
    return start, middle, end


SOLVED_SUCCESS = 0.8
"""Success rate above which little is left to learn from a bucket."""
HOPELESS_SUCCESS = 0.05
"""Success rate below which hardly any group contains a success."""
MIN_SUCCESS_RISE = 0.2
"""Smallest rise of a bucket's success rate that counts: rates come from few attempts."""
_MAX_BUCKETS_NAMED = 3


def check_curriculum(buckets: Sequence[BucketStats]) -> list[Verdict]:
    """Verdicts on a run with a curriculum, the most important first."""
    rates = [each.last_success for each in buckets if each.last_success is not None]
    if not rates:
        return []
    verdicts = []
    if min(rates) > SOLVED_SUCCESS:
        verdicts.append(
            note(
                "curriculum solved",
                finding=f"more than {format_share(SOLVED_SUCCESS)} of attempts succeed in all "
                f"{len(rates)} buckets that were drawn",
                advice="extend `curriculum` by harder values",
            )
        )
    if max(rates) < HOPELESS_SUCCESS:
        verdicts.append(
            problem(
                "curriculum out of reach",
                finding=f"at most {format_share(max(rates))} of attempts succeed in any of "
                f"{len(rates)} buckets",
                advice="extend `curriculum` by easier values, or warm-start the model with "
                "`ludus train sft`",
            )
        )
    risen = [each for each in buckets if _rise(each) >= MIN_SUCCESS_RISE]
    if risen:
        largest = sorted(risen, key=_rise, reverse=True)[:_MAX_BUCKETS_NAMED]
        named = "; ".join(
            f"{each.label} {format_share(each.first_success or 0.0)} -> "
            f"{format_share(each.last_success or 0.0)}"
            for each in largest
        )
        verdicts.append(
            good(
                "learned",
                finding=f"the success rate rose in {len(risen)} of {len(rates)} buckets: {named}",
                advice="measure it on held-out tasks with `ludus eval`",
            )
        )
    return verdicts


def _rise(bucket: BucketStats) -> float:
    if bucket.first_success is None or bucket.last_success is None:
        return 0.0
    return bucket.last_success - bucket.first_success
