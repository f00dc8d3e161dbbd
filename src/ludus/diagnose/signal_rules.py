"""Rules about the learning signal: collapsed or low entropy, and zero-variance groups.

Pure functions. Each returns a verdict, or None where it does not apply.
"""

from __future__ import annotations

from ludus.diagnose.log_stats import (
    entropy_key,
    logged_zero_variance_share,
    metric_mean,
    step_number,
)
from ludus.diagnose.number_format import format_share
from ludus.diagnose.verdict import RunEvidence, Verdict, problem

COLLAPSED_ENTROPY_NATS = 0.02
"""Per token. At this entropy nearly all attempts at a task are the same."""
COLLAPSED_ENTROPY_RATIO = 0.1
"""Entropy relative to the start, below which no exploration is left."""
ENTROPY_FALL_RATIO = 0.5
"""Entropy relative to the start: above it, the entropy has not fallen, however low it is."""
LOW_REWARD = 0.5
"""Fraction of the best reward. Above it, low entropy may mean that the policy is right."""
DEAD_GROUPS_SHARE = 0.6
"""Share of zero-variance groups from which on most of the work is wasted."""


def check_entropy_collapse(evidence: RunEvidence) -> Verdict | None:
    """Entropy fell by the middle of the run and stayed low, while the reward was low."""
    entropies = _entropies(evidence)
    if entropies is None or not _is_reward_low(evidence):
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
    entropies = _entropies(evidence)
    if entropies is None or max(entropies) > COLLAPSED_ENTROPY_NATS or not _is_reward_low(evidence):
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


def _entropies(evidence: RunEvidence) -> tuple[float, float, float] | None:
    """Return the entropy at the start, in the middle and at the end of the run."""
    entries = evidence.log.entries
    key, half, size = entropy_key(entries), len(entries) // 2, evidence.log.window_size
    start, end = evidence.mean_at_start(key), evidence.mean_at_end(key)
    middle = metric_mean(entries[max(0, half - size) : half], key)
    if start is None or end is None or middle is None:
        return None
    return start, middle, end


def _is_reward_low(evidence: RunEvidence) -> bool:
    scale = evidence.reward_change.scale
    return not scale.is_constant and scale.normalize(evidence.reward_change.final) <= LOW_REWARD


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
