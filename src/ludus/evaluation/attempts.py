"""Attempts: the episodes of a candidate's run, reduced to the numbers that an evaluation uses."""

from __future__ import annotations

from dataclasses import dataclass, field

from ludus.data.episode import Episode
from ludus.data.episode_reader import EpisodeHead, episodes
from ludus.data.messages import messages_before_reply
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject


@dataclass(frozen=True, slots=True)
class Attempt:
    """One episode in numbers."""

    plan_index: int
    """Its index in the plan: the same task, and the same attempt at it, for every candidate."""
    environment: str
    task: str
    prompt: str
    """The text before the model's first reply, without the system prompt."""
    broken: bool
    format_compliant: bool | None
    """`Episode.format_compliant`."""
    reward: float | None
    reply_tokens: float | None
    """Mean tokens per reply."""
    cut_off: bool = False
    """Whether a token limit ended it."""
    arguments: JsonObject = field(default_factory=dict)
    """The task's arguments of `reset`."""


def load_attempts(folder: RunFolder, planned_episodes: int) -> list[Attempt]:
    """Load the recorded episodes of the plan, in its order.

    Of an episode that was retried, the first one that is not broken counts, as on resume.
    """
    attempts: dict[int, Attempt] = {}
    for episode in episodes(folder.episodes_path, strict=False):
        index = EpisodeHead.from_episode(episode).plan_index
        if index is None or not episode.episode_id.startswith(folder.metadata.digest):
            continue
        if index < planned_episodes and (index not in attempts or attempts[index].broken):
            attempts[index] = build_attempt(episode, index)
    return [attempts[index] for index in sorted(attempts)]


def build_attempt(episode: Episode, plan_index: int) -> Attempt:
    prompt = messages_before_reply(episode.messages)
    tokens = episode.usage.completion_tokens
    # The usage of a retried episode covers all tries.
    has_usage = episode.attempt == 1 and tokens and episode.turns
    return Attempt(
        plan_index=plan_index,
        environment=episode.environment,
        task=episode.group_id,
        prompt="\n".join(message.text for message in prompt if message.role != "system"),
        broken=episode.broken,
        format_compliant=episode.format_compliant,
        reward=None if episode.broken else episode.reward,
        reply_tokens=tokens / episode.turns if has_usage and tokens else None,
        cut_off=episode.cut_off,
        arguments=episode.task,
    )
