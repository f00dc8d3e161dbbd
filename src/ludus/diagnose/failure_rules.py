"""Rules about what fails in a run: unstable training, faults, calls in the wrong format.

Pure functions. Each returns a verdict, or None where it does not apply.
"""

from __future__ import annotations

from statistics import median

from ludus.data.training_log import LogEntry, metric, metric_values, step_number
from ludus.diagnose.difficulty_rules import HARD_REWARD
from ludus.diagnose.episode_stats import RunEpisodes
from ludus.diagnose.evidence import RunEvidence
from ludus.diagnose.log_stats import StepLog, metric_mean
from ludus.diagnose.number_format import format_share
from ludus.diagnose.reward_delta import format_reward_change
from ludus.diagnose.verdict import Verdict, problem

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
        advice="use a lower `learning_rate`, and the `precision` fp32 where values are not finite",
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
