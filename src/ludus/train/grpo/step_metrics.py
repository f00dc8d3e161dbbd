"""Metrics of a step and of its episodes, for the training log. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import Any

from ludus.data.episode import Episode, StopReason
from ludus.policy.engine.engine_api import DecodeStats

_UNLOGGED_METRICS = frozenset({"step_time", "frac_reward_zero_std", "epoch"})
_UNLOGGED_PREFIXES = ("completions/", "clip_ratio/", "tools/", "sampling/", "profiling/")


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Shares and means under their names in `log.jsonl`; metrics without data are left out."""
    scored = [episode for episode in episodes if not episode.broken]
    metrics = {"unscored": 1 - len(scored) / len(episodes)}
    if scored:
        metrics |= format_metrics(scored)
        metrics |= {
            "done": fmean(episode.done for episode in scored),
            "cut_off": fmean(episode.cut_off for episode in scored),
            "out_of_turns": fmean(each.stop_reason is StopReason.MAX_TURNS for each in scored),
            "length": fmean(sum(each.tokens.mask) if each.tokens else 0 for each in scored),
            "turns": fmean(episode.turns for episode in scored),
        }
    negative_logprobs = [
        -logprob
        for episode in scored
        if episode.tokens is not None
        for logprob, sampled in zip(episode.tokens.logprobs, episode.tokens.mask, strict=True)
        if sampled and logprob is not None
    ]
    if negative_logprobs:
        metrics["sampled_nll"] = fmean(negative_logprobs)
    timings = [episode.timing for episode in episodes if episode.timing is not None]
    if timings:
        metrics["time/model"] = fmean(timing.model_s for timing in timings)
        metrics["time/environment"] = fmean(timing.environment_s for timing in timings)
    return metrics


def decode_metrics(before: DecodeStats, after: DecodeStats) -> dict[str, float]:
    """Metrics of a step's decoding: time, and the share of prompt tokens in the prefix cache."""
    prefilled = after.prefilled_tokens - before.prefilled_tokens
    reused = after.reused_tokens - before.reused_tokens
    metrics = {"time/decode": after.busy_s - before.busy_s}
    if prefilled + reused:
        metrics["reused"] = reused / (prefilled + reused)
    return metrics


def format_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Metric of a step: share of format-compliant among complete episodes; empty without any."""
    flags = [flag for each in episodes if (flag := each.format_compliant) is not None]
    return {"format": fmean(flags)} if flags else {}


def to_log_line(logs: Mapping[str, Any]) -> dict[str, Any]:
    """TRL's metrics of a step under Ludus's names, without values that are no finite numbers."""
    line = {
        name: value
        for name, value in logs.items()
        if name not in _UNLOGGED_METRICS and not name.startswith(_UNLOGGED_PREFIXES)
        if isinstance(value, int | float) and isfinite(value)
    }
    if (tokens := line.pop("num_tokens", None)) is not None:
        line["tokens"] = int(tokens)
    return line
