"""Rules about episodes that a limit ended: token limits, a full context, the turn limit.

Pure functions. Each returns a verdict, or None where it does not apply.
"""

from __future__ import annotations

from ludus.data.episode import StopReason
from ludus.diagnose.episode_stats import RunEpisodes
from ludus.diagnose.evidence import RunEvidence
from ludus.diagnose.log_stats import StepLog, metric_mean
from ludus.diagnose.number_format import format_share
from ludus.diagnose.verdict import Verdict, problem

MAX_LIMITED_SHARE = 0.2
"""Share of episodes ended by a limit from which on the limit, and not the task, is scored."""
MOSTLY_CUT_OFF_SHARE = 0.5
"""Share of cut-off episodes from which on rewards say more about the limit than the model."""
MIN_ADVISED_TOKENS = 128
"""Smallest token limit that is advised."""
_RAMBLING_CAVEAT = "unless the model rambles: then a warm start teaches it to stop"


def check_cut_off(log: StepLog, episodes: RunEpisodes) -> Verdict | None:
    share = metric_mean(log.last_window, "cut_off")
    if share is None or share < MAX_LIMITED_SHARE:
        return None
    limit, advice = _limit_and_advice(episodes, share)
    finding = f"{format_share(share)} of episodes at the end of the run were cut off by {limit}"
    if lengths := episodes.complete_lengths:
        median, p95 = lengths[len(lengths) // 2], lengths[int(0.95 * (len(lengths) - 1))]
        finding += (
            f"; complete ones had {median:,} tokens at the median, {p95:,} at the 95th percentile"
        )
    return problem("cut off", finding=finding, advice=advice)


def is_mostly_cut_off(log: StepLog) -> bool:
    return (metric_mean(log.last_window, "cut_off") or 0.0) >= MOSTLY_CUT_OFF_SHARE


def _limit_and_advice(episodes: RunEpisodes, cut_off_share: float) -> tuple[str, str]:
    """Describe the limit that cut off most episodes, and what to do about it."""
    cut_off = episodes.stop_counts.get(StopReason.MAX_TOKENS, 0)
    by_episode_limit = cut_off - episodes.context_full - episodes.reply_cuts
    if episodes.context_full > max(by_episode_limit, episodes.reply_cuts):
        return (
            "the end of the model's context",
            "use a lower `max_turns`, tasks with shorter observations (`task`), or a model with a "
            "longer context: a higher token limit does not help",
        )
    scope, argument, tokens = "an episode", "max_episode_tokens", episodes.limits.episode
    if episodes.reply_cuts > by_episode_limit:
        scope, argument, tokens = "a reply", "max_tokens", episodes.limits.reply
    if tokens is None:
        return f"the token limit of {scope}", f"raise `{argument}`, {_RAMBLING_CAVEAT}"
    factor = 4 if cut_off_share >= MOSTLY_CUT_OFF_SHARE else 2
    advised = max(MIN_ADVISED_TOKENS, tokens * factor)
    return (
        f"the limit of {tokens:,} tokens {scope}",
        f"raise `{argument}` to {advised}, {_RAMBLING_CAVEAT}",
    )


def check_out_of_turns(evidence: RunEvidence) -> Verdict | None:
    share = evidence.mean_at_end("out_of_turns")
    if share is None or share < MAX_LIMITED_SHARE:
        return None
    return problem(
        "out of turns",
        finding=f"{format_share(share)} of episodes at the end of the run used all of their turns",
        advice=f"raise `max_turns`, {_RAMBLING_CAVEAT}",
    )
