"""Rules about the groups of attempts: zero-variance groups, and unseeded ones.

Pure functions. Each returns a verdict, or None where it does not apply.
"""

from __future__ import annotations

from ludus.diagnose.evidence import RunEvidence
from ludus.diagnose.log_stats import StepLog, logged_zero_variance_share, metric_mean
from ludus.diagnose.number_format import format_share
from ludus.diagnose.verdict import Verdict, note, problem

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
