"""Rules about what hinders a run: unstable training, faults, low entropy, zero-variance groups.

Pure functions. Each returns a verdict, or None where it does not apply.
"""

from __future__ import annotations

from statistics import median

from ludus.diagnose.episode_stats import RunEpisodes
from ludus.diagnose.log_stats import (
    LogEntry,
    StepLog,
    entropy_key,
    logged_zero_variance_share,
    metric,
    metric_mean,
    metric_values,
    step_number,
)
from ludus.diagnose.number_format import format_share
from ludus.diagnose.verdict import RunEvidence, Verdict, note, problem

MAX_UNSCORED_SHARE = 0.02
"""Share of episodes that faults may end: each one makes its group smaller and costs time."""
SPIKE_RATIO = 10.0
"""Gradient norm or loss relative to the median of the steps before it."""
CLIP_NORM = 1.0
"""Gradients are clipped to this norm, so a spike below it does no harm."""
MIN_SPIKES = 3
"""Fewer spikes may be accidents."""
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


def check_unseeded(log: StepLog) -> Verdict | None:
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
