"""Rules about the difficulty of the tasks: too easy, too hard.

Pure functions of the evidence. In a mixture each environment is checked on its own.
"""

from __future__ import annotations

from ludus.diagnose.evidence import RunEvidence
from ludus.diagnose.log_stats import logged_zero_variance_share
from ludus.diagnose.number_format import format_share
from ludus.diagnose.reward_delta import RewardChange, format_reward, format_reward_change
from ludus.diagnose.verdict import Verdict, problem

EASY_REWARD = 0.9
"""Initial reward, as a fraction of the best: what is left to gain is hardly more than noise."""
HARD_REWARD = 0.2
"""Initial reward, as a fraction of the best: below it few groups contain a success."""
HARD_ZERO_VARIANCE_SHARE = 0.5
"""Share of zero-variance groups from which on a task counts as out of reach. With groups of eight
it is reached where one attempt in twelve succeeds."""


def check_too_easy(evidence: RunEvidence) -> list[Verdict]:
    """Applies only where the best possible reward is known: the best seen may be far below it."""
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
