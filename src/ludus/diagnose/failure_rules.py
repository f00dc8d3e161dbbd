"""Rules about what fails in a run: training, faults, calls, and limits that end episodes.

Pure functions. Each returns a verdict, or None if it does not apply.
"""

from __future__ import annotations

from statistics import median

from ludus.data.episode import StopReason
from ludus.data.training_log import LogEntry, metric, metric_values, step_number
from ludus.diagnose.episode_stats import RunEpisodes
from ludus.diagnose.learning_rules import HARD_REWARD
from ludus.diagnose.reward_delta import format_reward_change, format_share
from ludus.diagnose.step_log import StepLog, metric_mean
from ludus.diagnose.verdict import RunEvidence, Verdict, note, problem

MAX_UNSCORED_SHARE = 0.02
"""Share of episodes that faults may end: each one makes its group smaller and costs time."""
SPIKE_RATIO = 10.0
"""Gradient norm or loss relative to the median of the steps before it."""
CLIP_NORM = 1.0
"""Gradients are clipped to this norm, so a spike below it does no harm."""
MIN_SPIKES = 3
"""Fewer spikes may be accidents."""
MIN_FORMAT_SHARE = 0.5
"""Share of episodes with valid calls below which the format, and not the task, is what fails."""
_MAX_FAULT_CHARS = 300
_MAX_BASELINE_STEPS, _MIN_BASELINE_STEPS = 20, 5
"""Steps before a spike that it is compared with."""


def check_unstable(log: StepLog) -> Verdict | None:
    # Steps with a learning signal (`trained` is not 0) that lack a loss or a gradient norm which
    # other steps have: it was not finite.
    keys = [key for key in ("loss", "grad_norm") if metric_values(log.entries, key)]
    not_finite = [
        step_number(entry)
        for entry in log.entries
        if metric(entry, "trained") != 0 and any(metric(entry, key) is None for key in keys)
    ]
    spikes = sorted({*_spike_steps(log.entries, "grad_norm"), *_spike_steps(log.entries, "loss")})
    findings = []
    if not_finite:
        findings.append(f"{_format_steps(not_finite)} had a loss or a gradient that is not finite")
    if len(spikes) >= MIN_SPIKES:
        findings.append(f"{_format_steps(spikes)} spiked to {SPIKE_RATIO:.0f} times the median")
    if not findings:
        return None
    return problem(
        "unstable",
        finding=" and ".join(findings),
        advice="use a lower `learning_rate`, and the `precision` fp32 if values are not finite",
    )


def _spike_steps(entries: tuple[LogEntry, ...], key: str) -> list[int]:
    values = [abs(metric(entry, key) or 0.0) for entry in entries]
    steps = []
    for i, value in enumerate(values):
        before = [each for each in values[max(0, i - _MAX_BASELINE_STEPS) : i] if each > 0]
        if len(before) < _MIN_BASELINE_STEPS:
            continue
        if value > max(CLIP_NORM, SPIKE_RATIO * median(before)):
            steps.append(step_number(entries[i]))
    return steps


def _format_steps(steps: list[int]) -> str:
    examples = ", ".join(f"{step:,}" for step in steps[:3])
    more = ", ..." if len(steps) > 3 else ""
    return f"{len(steps):,} {'step' if len(steps) == 1 else 'steps'} ({examples}{more})"


def check_unscored(log: StepLog, episodes: RunEpisodes) -> Verdict | None:
    share = metric_mean(log.entries, "unscored")
    if share is None or share < MAX_UNSCORED_SHARE:
        return None
    finding = f"{format_share(share)} of episodes were ended by a fault and are unscored"
    advice, source = "look at one", "environment"
    if (last := episodes.last_broken) is not None:
        advice += f" with `ludus show RUN {last.episode_id}`"
        if last.fault is not None:
            message = " ".join(last.fault.message.split())
            if len(message) > _MAX_FAULT_CHARS:
                message = f"{message[: _MAX_FAULT_CHARS - 3]}..."
            finding += f"; the last fault: {message.removesuffix('.')}"
            source = last.fault.where
    if source == "model":
        advice += ": the model failed, not the environment"
    else:
        advice += ", and at the environment's server: its log, its sessions, its time limits"
    return problem("unscored episodes", finding=finding, advice=advice)


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
        f"({format_reward_change(change)})",
        advice="warm-start the model: `ludus collect` with a teacher or the oracle, `ludus "
        "curate`, `ludus train sft`, then GRPO on the resulting model",
    )


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
