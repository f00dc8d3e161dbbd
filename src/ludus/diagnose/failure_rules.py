"""Verdicts on what hindered a run: numbers that break, faults, entropy, dead groups.

Pure rules. Each gives a verdict, or None where it does not hold.
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
"""The share of episodes that faults may end: each one makes its group smaller, and costs time."""
SPIKE_RATIO = 10.0
"""A gradient's norm or a loss beside the median of the steps before it."""
CLIP_NORM = 1.0
"""Gradients are clipped to this norm, so what spikes below it does no harm."""
MIN_SPIKES = 3
"""Spikes that are no accident."""
_MAX_FAULT_CHARS = 300
"""Characters of a fault."""
_MAX_BASELINE_STEPS, _MIN_BASELINE_STEPS = 20, 5
"""Steps that a spike is held against, at most and at least."""
COLLAPSED_ENTROPY_NATS = 0.02
"""Nats for each token: at this entropy nearly all attempts at a task are the same."""
COLLAPSED_ENTROPY_RATIO = 0.1
"""Entropy beside that at the beginning, below which there is nothing left to explore with."""
ENTROPY_FALL_RATIO = 0.5
"""Of the entropy at the beginning: what is above it has not fallen, however low it is."""
LOW_REWARD = 0.5
"""Of the best reward. Above it a policy may well have become sure because it is right."""
DEAD_GROUPS_SHARE = 0.6
"""The share of equal groups that makes a run mostly idle."""


def check_unstable(log: StepLog) -> Verdict | None:
    lines = log.entries
    blank, wild = (
        _steps_without_loss(lines),
        sorted({*_spike_steps(lines, "grad_norm"), *_spike_steps(lines, "loss")}),
    )
    if not blank and len(wild) < MIN_SPIKES:
        return None
    found = [
        *([f"{_format_steps(blank)} had a loss or a gradient that is no number"] if blank else []),
        *(
            [f"{_format_steps(wild)} spiked to {SPIKE_RATIO:.0f} times the usual"]
            if len(wild) >= MIN_SPIKES
            else []
        ),
    ]
    return problem(
        "unstable",
        finding=" and ".join(found),
        advice="use a lower --learning-rate, and --precision fp32 where numbers are lost",
    )


def _steps_without_loss(entries: tuple[LogEntry, ...]) -> list[int]:
    """Steps that had something to learn from and have no loss or gradient, where others have.

    Where no episode teaches anything (`trained` is 0), nothing is expected of them.
    """
    keys = [key for key in ("loss", "grad_norm") if metric_values(entries, key)]
    return [
        step_number(line)
        for line in entries
        if metric(line, "trained") != 0 and any(metric(line, key) is None for key in keys)
    ]


def _spike_steps(entries: tuple[LogEntry, ...], key: str) -> list[int]:
    found = []
    sizes = [(step_number(line), abs(metric(line, key) or 0.0)) for line in entries]
    for at, (step, size) in enumerate(sizes):
        before = [value for _, value in sizes[max(0, at - _MAX_BASELINE_STEPS) : at] if value > 0]
        if len(before) >= _MIN_BASELINE_STEPS and size > max(
            CLIP_NORM, SPIKE_RATIO * median(before)
        ):
            found.append(step)
    return found


def _format_steps(steps: list[int]) -> str:
    named = ", ".join(f"{step:,}" for step in steps[:3])
    more = ", ..." if len(steps) > 3 else ""
    return f"{len(steps):,} {'step' if len(steps) == 1 else 'steps'} ({named}{more})"


def check_unscored(log: StepLog, episodes: RunEpisodes) -> Verdict | None:
    part = metric_mean(log.entries, "unscored")
    if part is None or part < MAX_UNSCORED_SHARE:
        return None
    last = episodes.last_broken
    fault = last.fault if last is not None else None
    example = f" with `ludus show RUN {last.episode_id}`" if last is not None else ""
    return problem(
        "unscored episodes",
        finding=f"{format_share(part)} of episodes were ended by a fault and scored for nobody"
        + (f", the last by this: {_shorten(fault.message)}" if fault is not None else ""),
        advice=f"look at one{example}: it was the model's side that failed"
        if fault is not None and fault.where == "model"
        else f"look at one{example}, and at the environment's server: its log, its sessions, its "
        "time limits",
    )


def check_unseeded(log: StepLog) -> Verdict | None:
    part = metric_mean(log.entries, "unseeded")
    if not part:
        return None
    return note(
        "unseeded groups",
        finding=f"in {format_share(part)} of groups the attempts were at different tasks, because the "
        "environment ignores its seed: what sets them apart is partly the luck of the task",
        advice="let its reset draw everything from the seed, or use a larger --group-size",
    )


def _shorten(message: str) -> str:
    """A fault's words as the end of a sentence."""
    words = " ".join(message.split())
    return (
        words.removesuffix(".")
        if len(words) <= _MAX_FAULT_CHARS
        else f"{words[: _MAX_FAULT_CHARS - 3]}..."
    )


def check_entropy_collapse(evidence: RunEvidence) -> Verdict | None:
    """It fell by the middle of the run, and stayed low, while there was much left to gain."""
    found = _entropies(evidence)
    if found is None or not _is_reward_low(evidence):
        return None
    begins, middle, ends = found
    low = max(middle, ends)
    if (
        low > max(COLLAPSED_ENTROPY_NATS, COLLAPSED_ENTROPY_RATIO * begins)
        or low > ENTROPY_FALL_RATIO * begins
    ):
        return None
    lines = evidence.log.entries
    return problem(
        "entropy collapse",
        finding=f"entropy went from {begins:.2g} to {middle:.2g} by step "
        f"{step_number(lines[len(lines) // 2 - 1]):,}: attempts hardly differ, and reward is still low",
        advice="use a lower --learning-rate or a higher --temperature",
    )


def check_low_entropy(evidence: RunEvidence) -> Verdict | None:
    """It was low from the beginning: training did not do that."""
    found = _entropies(evidence)
    if found is None or max(found) > COLLAPSED_ENTROPY_NATS or not _is_reward_low(evidence):
        return None
    if check_entropy_collapse(evidence) is not None:
        return None
    begins, _, ends = found
    return problem(
        "low entropy",
        finding=f"entropy was {begins:.2g} at the beginning and {ends:.2g} at the end: attempts at "
        "a task hardly differ, so that there is little to learn from",
        advice="use a higher --temperature, or a warm start that was trained for fewer epochs",
    )


def _entropies(evidence: RunEvidence) -> tuple[float, float, float] | None:
    """At the beginning, in the middle and at the end of the run."""
    lines = evidence.log.entries
    key, half, edge = entropy_key(lines), len(lines) // 2, evidence.log.window_size
    begins, ends = evidence.mean_at_start(key), evidence.mean_at_end(key)
    middle = metric_mean(lines[max(0, half - edge) : half], key)
    if begins is None or ends is None or middle is None:
        return None
    return begins, middle, ends


def _is_reward_low(evidence: RunEvidence) -> bool:
    scale = evidence.reward_change.scale
    return not scale.is_constant and scale.normalize(evidence.reward_change.final) <= LOW_REWARD


def check_dead_groups(evidence: RunEvidence) -> Verdict | None:
    """In both halves of what came before saturation, which has equal groups of its own."""
    course = evidence.log
    lines = (
        course.entries_before(evidence.early_stop.step) if evidence.early_stop else course.entries
    )
    half = len(lines) // 2
    halves = [logged_zero_variance_share(lines[:half]), logged_zero_variance_share(lines[half:])]
    parts = [part for part in halves if part is not None]
    if len(parts) < 2 or min(parts) < DEAD_GROUPS_SHARE:
        return None
    return problem(
        "dead groups",
        finding=f"{format_share(sum(parts) / 2)} of groups had equal rewards all through the run and "
        "taught nothing",
        advice="use more attempts at each task (--group-size), tasks of another difficulty "
        "(--task), or --equal resample",
    )
