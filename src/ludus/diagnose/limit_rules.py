"""Verdicts on episodes that a limit ended: too few tokens, a full context, too few turns.

Pure rules. Each gives a verdict, or None where it does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ludus.data.episode import StopReason
from ludus.diagnose.episode_stats import RunEpisodes
from ludus.diagnose.log_stats import StepLog, metric_mean
from ludus.diagnose.number_format import format_share
from ludus.diagnose.verdict import RunEvidence, Verdict, problem

MAX_LIMITED_SHARE = 0.2
"""The share of episodes at a limit: one in five is no accident, and is scored for its length."""
MOSTLY_CUT_OFF_SHARE = 0.5
"""The share of cut-off episodes from which on rewards tell more of the limit than of the model."""
MIN_ADVISED_TOKENS = 128
"""Tokens below which no limit is advised."""
_RAMBLING_CAVEAT = "unless the model rambles: then a warm start teaches it to end"
_CONTEXT_FULL_ADVICE = (
    "use fewer --max-turns, tasks that show less (--task), or a model that reads more: with more "
    "tokens they would not go on"
)


class _Limit(NamedTuple):
    """A limit that cut episodes off, and the option that sets it."""

    scope: str
    option: str
    tokens: int | None


def check_cut_off(log: StepLog, episodes: RunEpisodes) -> Verdict | None:
    """Replies that are not complete cannot be judged, so this comes before all else."""
    part = metric_mean(log.last_window, "cut_off")
    if part is None or part < MAX_LIMITED_SHARE:
        return None
    limit, advice = _limit_and_advice(episodes, part)
    return problem(
        "cut off",
        finding=f"{format_share(part)} of episodes at the end of the run were cut off by {limit}"
        f"{_describe_lengths(episodes.complete_lengths)}",
        advice=advice,
    )


def is_mostly_cut_off(log: StepLog) -> bool:
    return (metric_mean(log.last_window, "cut_off") or 0.0) >= MOSTLY_CUT_OFF_SHARE


def _limit_and_advice(episodes: RunEpisodes, cut_off_share: float) -> tuple[str, str]:
    """The limit that cut off most episodes, and what to do about it."""
    by_episode = (
        episodes.stop_counts.get(StopReason.MAX_TOKENS, 0)
        - episodes.context_full
        - episodes.reply_cuts
    )
    if episodes.context_full > max(by_episode, episodes.reply_cuts):
        return "the end of the model's context", _CONTEXT_FULL_ADVICE
    if episodes.reply_cuts > by_episode:
        limit = _Limit("a reply", "--max-tokens", episodes.limits.reply)
    else:
        limit = _Limit("an episode", "--max-episode-tokens", episodes.limits.episode)
    if limit.tokens is None:
        return f"the token limit of {limit.scope}", f"raise {limit.option}, {_RAMBLING_CAVEAT}"
    more = max(
        MIN_ADVISED_TOKENS, limit.tokens * (4 if cut_off_share >= MOSTLY_CUT_OFF_SHARE else 2)
    )
    return (
        f"the limit of {limit.tokens:,} tokens {limit.scope}",
        f"raise it to {limit.option} {more}, {_RAMBLING_CAVEAT}",
    )


def _describe_lengths(lengths: Sequence[int]) -> str:
    """How long those episodes were that are complete."""
    if not lengths:
        return ""
    middle, long = lengths[len(lengths) // 2], lengths[int(0.95 * (len(lengths) - 1))]
    return f"; complete ones had {middle:,} tokens at the median, {long:,} at the 95th percentile"


def check_out_of_turns(evidence: RunEvidence) -> Verdict | None:
    part = evidence.mean_at_end("out_of_turns")
    if part is None or part < MAX_LIMITED_SHARE:
        return None
    return problem(
        "out of turns",
        finding=f"{format_share(part)} of episodes at the end of the run used all of their turns",
        advice=f"raise --max-turns, {_RAMBLING_CAVEAT}",
    )
