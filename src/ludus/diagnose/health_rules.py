"""Rules about the health of a run: rollbacks to its best model, and a decoder that deviates.

Pure functions. Each returns a verdict, or None where it does not apply.
"""

from __future__ import annotations

from ludus.diagnose.log_stats import StepLog, metric_mean
from ludus.diagnose.verdict import Verdict, note, problem

LARGE_MISMATCH = 0.1
"""Mean difference of log-probabilities between decoder and trainer; rounding makes about 0.01."""


def check_rollbacks(log: StepLog) -> Verdict | None:
    if not log.rollbacks:
        return None
    found = ", ".join(f"after step {step:,} to that of step {to:,}" for step, to in log.rollbacks)
    return note(
        "rolled back",
        finding=f"it got worse and went back to its best model: {found}; each time at half the "
        "learning rate",
        advice="the best model is kept; a lower `learning_rate` or `target_kl`, or more `groups`, "
        "saves the steps in between",
    )


def check_mismatch(log: StepLog) -> Verdict | None:
    """Whether the decoder computes probabilities that differ from the trainer's."""
    mismatch = metric_mean(log.last_window, "mismatch")
    if mismatch is None or mismatch < LARGE_MISMATCH:
        return None
    return problem(
        "decoder mismatch",
        finding="log-probabilities of sampled tokens differ between decoder and trainer by "
        f"{mismatch:.2g} on average",
        advice="use a lower `learning_rate`; if it is so from the first step on, set `precision` "
        "to fp32, or report it with the model's name",
    )
