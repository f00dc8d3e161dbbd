"""The episodes of a GRPO run, reduced to what a diagnosis needs and grouped by step and task.

Most of a line of `episodes.jsonl` is messages and tokens. They are cut out before the JSON is
parsed, because the fields that are needed stand around them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ludus.data.episode import EpisodeFault, StopReason, Usage
from ludus.data.episode_reader import ResumeIndex, parse_head
from ludus.data.interval_estimates import MeanEstimate, is_zero_variance
from ludus.data.json_files import numbered_lines

_MESSAGES_KEY, _REWARDS_KEY, _TOKENS_KEY = b',"messages":[', b',"rewards":{', b',"tokens":'
_FAULT_REASONS = frozenset(reason.value for reason in StopReason if reason.is_fault)


class EpisodeStats(NamedTuple):
    """The few fields of an episode that a diagnosis uses."""

    episode_id: str
    step: int
    environment: str
    task: str
    """Its `group_id`."""
    stop_reason: str
    reward: float | None
    sampled_tokens: int = 0
    fault: EpisodeFault | None = None

    @property
    def cut_off(self) -> bool:
        return self.stop_reason == StopReason.MAX_TOKENS


Limit = Literal["episode", "reply", "context"]


class TokenLimits(NamedTuple):
    """How many tokens the model may sample. None: unlimited, or unknown."""

    episode: int | None = None
    reply: int | None = None

    def reached(self, sampled_tokens: int) -> Limit:
        """Which limit cut off an episode with this many sampled tokens."""
        if self.episode is None or sampled_tokens >= self.episode:
            return "episode"
        return "reply" if self.reply is not None and sampled_tokens >= self.reply else "context"


_NO_LIMITS = TokenLimits()


@dataclass(frozen=True, slots=True)
class EpisodeGroupStats:
    """The scored attempts at one task in one step."""

    step: int
    environment: str
    task: str
    rewards: tuple[float, ...]

    @property
    def has_zero_variance(self) -> bool:
        return is_zero_variance(self.rewards)


@dataclass(frozen=True, slots=True)
class RunEpisodes:
    """All episodes of a run."""

    groups: tuple[EpisodeGroupStats, ...] = ()
    mean_reward: MeanEstimate | None = None
    """Over the episodes of all steps, as in `ludus runs`."""
    limits: TokenLimits = _NO_LIMITS
    cut_off_by: Mapping[Limit, int] = field(default_factory=dict)
    last_broken: EpisodeStats | None = None

    @property
    def environments(self) -> tuple[str, ...]:
        return tuple(sorted({group.environment for group in self.groups}))

    def groups_between(
        self, first: int, last: int, environment: str | None = None
    ) -> list[EpisodeGroupStats]:
        """Return the groups of steps `first` to `last`, of all environments or of one."""
        return [
            group
            for group in self.groups
            if first <= group.step <= last and environment in (None, group.environment)
        ]


def zero_variance_share(groups: Collection[EpisodeGroupStats]) -> float | None:
    """Return the share of groups without a learning signal."""
    return sum(group.has_zero_variance for group in groups) / len(groups) if groups else None


def group_episode_stats(
    episodes: Iterable[EpisodeStats], *, limits: TokenLimits = _NO_LIMITS
) -> RunEpisodes:
    """Group the stats of episodes by step and task.

    A run that resumes from a checkpoint plays some steps again: of episodes with the same id, the
    last one counts.
    """
    latest = list({(episode.step, episode.episode_id): episode for episode in episodes}.values())
    broken = [episode for episode in latest if episode.stop_reason in _FAULT_REASONS]
    valid = [episode for episode in latest if episode.stop_reason not in _FAULT_REASONS]
    members: defaultdict[tuple[int, str, str], list[EpisodeStats]] = defaultdict(list)
    for episode in valid:
        if episode.reward is not None:
            members[episode.step, episode.environment, episode.task].append(episode)
    return RunEpisodes(
        groups=tuple(
            EpisodeGroupStats(*key, tuple(each.reward for each in group if each.reward is not None))
            for key, group in members.items()
        ),
        limits=limits,
        cut_off_by=Counter(limits.reached(each.sampled_tokens) for each in valid if each.cut_off),
        last_broken=broken[-1] if broken else None,
    )


def read_episode_stats(file: Path, *, limits: TokenLimits = _NO_LIMITS) -> RunEpisodes:
    """Read the stats of an `episodes.jsonl`, without damaged lines; a missing file is empty."""
    if not file.exists():
        return RunEpisodes()
    episodes, index = list[EpisodeStats](), ResumeIndex()
    for number, line in numbered_lines(file):
        episode = parse_episode_stats(line)
        head = parse_head(line, file, number)
        if episode is not None and head is not None:
            episodes.append(episode)
            index.add([head])
    run = group_episode_stats(episodes, limits=limits)
    return replace(run, mean_reward=index.totals.rewards.estimate())


class _Agent(BaseModel):
    model_config = ConfigDict(extra="ignore")

    step: int = Field(strict=True)


class _EpisodeFields(BaseModel):
    """The fields of a line that are needed."""

    model_config = ConfigDict(extra="ignore")

    episode_id: str
    environment: str
    group_id: str
    stop_reason: str
    agent: _Agent
    reward: float | None
    usage: Usage = Usage()
    error: EpisodeFault | None = None


def parse_episode_stats(line: bytes) -> EpisodeStats | None:
    """Parse the stats of a line; None if it is truncated or no episode of a training step.

    An episode is written as head, messages, tools, rewards and so on, tokens. Free-form keys occur
    up to the tools, so the last `rewards` and `tokens` of a line are the episode's own. If messages
    and tokens cannot be cut out, all of it is parsed.
    """
    head, rewards = line.find(_MESSAGES_KEY), line.rfind(_REWARDS_KEY)
    tokens = line.rfind(_TOKENS_KEY)
    texts = [line]
    if line.endswith(b"}\n") and 0 < head < rewards < tokens:
        texts.insert(0, line[:head] + line[rewards:tokens] + b"}")
    for text in texts:
        with suppress(ValidationError):
            fields = _EpisodeFields.model_validate_json(text)
            return EpisodeStats(
                fields.episode_id,
                fields.agent.step,
                fields.environment,
                fields.group_id,
                fields.stop_reason,
                fields.reward,
                fields.usage.completion_tokens,
                fields.error,
            )
    return None
