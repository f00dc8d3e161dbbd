"""What an evaluation needs of the episodes of a run: a few figures of each.

Reads a run folder. What the figures come to is `ludus.evaluation.metrics`' business.
"""

from __future__ import annotations

from dataclasses import dataclass

from ludus.data.episode import Episode
from ludus.data.episode_reader import EpisodeHead, episodes
from ludus.data.messages import messages_before_reply
from ludus.data.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Attempt:
    """One episode in figures."""

    plan_index: int
    """Its index in the plan: the same task, and the same attempt at it, for every candidate."""
    environment: str
    task: str
    prompt: str
    """What was asked before the model spoke for the first time; the system prompt is not asked."""
    broken: bool
    format_compliant: bool | None
    """`Episode.format_compliant`."""
    reward: float | None
    reply_tokens: float | None
    cut_off: bool = False
    """Whether a token limit ended it."""


def load_attempts(folder: RunFolder, planned_episodes: int) -> list[Attempt]:
    """The episodes of the plan that are recorded, in its order.

    Of one that was tried again the first that is not broken counts, as it does when a run goes on.
    """
    found: dict[int, Attempt] = {}
    for episode in episodes(folder.episodes_path, strict=False):
        place = EpisodeHead.from_episode(episode).plan_index
        if place is None or not episode.episode_id.startswith(folder.metadata.digest):
            continue
        if place < planned_episodes and (place not in found or found[place].broken):
            found[place] = build_attempt(episode, place)
    return [found[place] for place in sorted(found)]


def build_attempt(episode: Episode, plan_index: int) -> Attempt:
    asked = messages_before_reply(episode.messages)
    return Attempt(
        plan_index=plan_index,
        environment=episode.environment,
        task=episode.group_id,
        prompt="\n".join(message.text for message in asked if message.role != "system"),
        broken=episode.broken,
        format_compliant=episode.format_compliant,
        reward=None if episode.broken else episode.reward,
        reply_tokens=_mean_reply_tokens(episode),
        cut_off=episode.cut_off,
    )


def _mean_reply_tokens(episode: Episode) -> float | None:
    """The mean over its replies. Of one that was tried again, the usage tells of all tries."""
    tokens = episode.usage.completion_tokens
    if episode.attempt > 1 or not (tokens and episode.turns):
        return None
    return tokens / episode.turns
