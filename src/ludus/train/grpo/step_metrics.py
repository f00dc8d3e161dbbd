"""What a step's episodes were like, as numbers for the log. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from ludus.data.episode import Episode, StopReason
from ludus.policy.engine.decode_stats import DecodeStats


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Shares and means, as `log.jsonl` names them; what nothing can be said of is left out."""
    scored = [episode for episode in episodes if not episode.broken]
    found = {"unscored": 1 - len(scored) / len(episodes)}
    if scored:
        found |= format_metrics(scored)
        found |= {
            "done": fmean(episode.done for episode in scored),
            "cut_off": fmean(episode.cut_off for episode in scored),
            "out_of_turns": fmean(each.stop_reason is StopReason.MAX_TURNS for each in scored),
            "length": fmean(sum(each.tokens.mask) if each.tokens else 0 for each in scored),
            "turns": fmean(episode.turns for episode in scored),
        }
    chances = [
        -chance
        for episode in scored
        if episode.tokens is not None
        for chance, sampled in zip(episode.tokens.logprobs, episode.tokens.mask, strict=True)
        if sampled and chance is not None
    ]
    if chances:
        found["surprise"] = fmean(chances)
    timed = [episode.timing for episode in episodes if episode.timing is not None]
    if timed:
        found["time/model"] = fmean(timing.model_s for timing in timed)
        found["time/environment"] = fmean(timing.environment_s for timing in timed)
    return found


def pre_resampling_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """The reward of the tasks as they came, before some of them are replaced."""
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    if not rewards:
        return {}
    deviation = stdev(rewards) if len(rewards) > 1 else 0.0
    return {"asked/reward": fmean(rewards), "asked/reward_std": deviation}


def decode_metrics(before: DecodeStats, after: DecodeStats) -> dict[str, float]:
    """What the model was kept busy with in between."""
    read, reused = (
        after.prefilled_tokens - before.prefilled_tokens,
        after.reused_tokens - before.reused_tokens,
    )
    found = {"time/decode": after.busy_s - before.busy_s}
    return found | ({"reused": reused / (read + reused)} if read + reused else {})


def format_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Format compliance, over the episodes with a complete reply; nothing where there are none."""
    known = [flag for each in episodes if (flag := each.format_compliant) is not None]
    return {"format": fmean(known)} if known else {}
