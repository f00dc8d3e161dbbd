"""Rules about the entropy of the policy: collapsed, or low from the start.

Pure functions. Each returns a verdict, or None where it does not apply.
"""

from __future__ import annotations

from ludus.data.training_log import entropy_key, step_number
from ludus.diagnose.evidence import RunEvidence
from ludus.diagnose.log_stats import metric_mean
from ludus.diagnose.verdict import Verdict, problem

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

    None where the reward is high, because low entropy is right then, and where none is logged.
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
