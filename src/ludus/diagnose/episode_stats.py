"""What the episodes of a run came to, group by group: as much of `episodes.jsonl` as is needed.

A line's tokens and messages are most of it and are not parsed: what is wanted stands around them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.data.episode import Fault, StopReason
from ludus.data.episode_reader import numbered_lines
from ludus.data.reward_variance import is_zero_variance

_MESSAGES_KEY, _REWARDS_KEY, _TOKENS_KEY = b',"messages":[', b',"rewards":{', b',"tokens":'
_FAULT_REASONS = frozenset(reason.value for reason in StopReason if reason.is_fault)


class EpisodeStats(NamedTuple):
    """What is wanted of one episode."""

    episode_id: str
    step: int
    """The training step that it was played for."""
    environment: str
    task: str
    """The id of its group."""
    stop_reason: str
    reward: float | None
    environment_reward: float | None
    """What the environment gave of it: all, where no functions of the user's are summed."""
    sampled_tokens: int = 0
    """Tokens that the model said."""
    fault: Fault | None = None

    @property
    def cut_off(self) -> bool:
        return self.stop_reason == StopReason.MAX_TOKENS


class TokenLimits(NamedTuple):
    """How many tokens the model may sample. None: not known, or no limit."""

    episode: int | None = None
    reply: int | None = None


_NO_LIMITS = TokenLimits()


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """The scored attempts at one task in one step."""

    step: int
    environment: str
    task: str
    rewards: tuple[float, ...]
    environment_rewards: tuple[float, ...]
    """What the environment gave of them."""

    def rewards_from(self, environment: str | None) -> tuple[float, ...]:
        """What this environment gave, or the whole rewards where none is named."""
        if environment is None:
            return self.rewards
        return self.environment_rewards if self.environment == environment else ()

    @property
    def has_zero_variance(self) -> bool:
        """Whether there is nothing to tell its members apart."""
        return is_zero_variance(self.rewards)


@dataclass(frozen=True, slots=True)
class RunEpisodes:
    """All of a run's episodes."""

    groups: tuple[ScoredGroup, ...] = ()
    stop_counts: Mapping[str, int] = field(default_factory=dict)
    """How many episodes ended for which reason."""
    limits: TokenLimits = _NO_LIMITS
    context_full: int = 0
    """Those that ended with tokens left to say, because the model's context was full."""
    reply_cuts: int = 0
    """Those that the limit of one reply ended, with tokens of the episode left."""
    complete_lengths: tuple[int, ...] = ()
    """Sampled tokens of each episode that no token limit ended, in order of size."""
    last_broken: EpisodeStats | None = None
    """The last that a fault ended."""
    unreadable_lines: int = 0
    """Lines that are no episode."""

    @property
    def environments(self) -> tuple[str, ...]:
        return tuple(sorted({group.environment for group in self.groups}))

    def groups_between(
        self, first: int, last: int, environment: str | None = None
    ) -> list[ScoredGroup]:
        """The groups of these steps, of all environments or of one."""
        return [
            group
            for group in self.groups
            if first <= group.step <= last and environment in (None, group.environment)
        ]


def zero_variance_share(groups: Collection[ScoredGroup]) -> float | None:
    """How many of the groups have nothing to learn from."""
    return sum(group.has_zero_variance for group in groups) / len(groups) if groups else None


def group_episodes(
    episodes: Iterable[EpisodeStats], *, limits: TokenLimits = _NO_LIMITS, unreadable_lines: int = 0
) -> RunEpisodes:
    """Put attempts into their groups.

    A run that went on from a checkpoint plays some steps again: an episode that is there twice
    counts once, as it went the last time.
    """
    latest = list({(attempt.step, attempt.episode_id): attempt for attempt in episodes}.values())
    broken = [one for one in latest if one.stop_reason in _FAULT_REASONS]
    played = [one for one in latest if one.stop_reason not in _FAULT_REASONS]
    cut = [one for one in played if one.cut_off]
    by_reply = [one for one in cut if _is_reply_cut(one, limits)]
    return RunEpisodes(
        groups=_build_groups(played),
        stop_counts=Counter(one.stop_reason for one in latest),
        limits=limits,
        context_full=sum(_has_tokens_left(one, limits.episode) for one in cut) - len(by_reply),
        reply_cuts=len(by_reply),
        complete_lengths=tuple(sorted(one.sampled_tokens for one in played if not one.cut_off)),
        last_broken=broken[-1] if broken else None,
        unreadable_lines=unreadable_lines,
    )


def _build_groups(episodes: Iterable[EpisodeStats]) -> tuple[ScoredGroup, ...]:
    members: defaultdict[tuple[int, str, str], list[EpisodeStats]] = defaultdict(list)
    for one in episodes:
        if one.reward is not None:
            members[one.step, one.environment, one.task].append(one)
    return tuple(
        ScoredGroup(
            *key,
            tuple(one.reward for one in group if one.reward is not None),
            tuple(one.environment_reward for one in group if one.environment_reward is not None),
        )
        for key, group in members.items()
    )


def _has_tokens_left(episode: EpisodeStats, budget: int | None) -> bool:
    """Whether the model had tokens left to sample in the episode."""
    return budget is not None and episode.sampled_tokens < budget


def _is_reply_cut(episode: EpisodeStats, limits: TokenLimits) -> bool:
    reached = limits.reply is not None and episode.sampled_tokens >= limits.reply
    return reached and _has_tokens_left(episode, limits.episode)


def read_episodes(
    file: Path, *, has_reward_functions: bool = False, limits: TokenLimits = _NO_LIMITS
) -> RunEpisodes:
    """What an `episodes.jsonl` holds; nothing where there is none yet.

    `summed` tells that functions of the user's are in the rewards.
    """
    if not file.exists():
        return RunEpisodes()
    found, unreadable = list[EpisodeStats](), 0
    for _, line in numbered_lines(file):
        attempt = parse_episode(line, has_reward_functions=has_reward_functions)
        if attempt is None:
            unreadable += 1
        else:
            found.append(attempt)
    return group_episodes(found, limits=limits, unreadable_lines=unreadable)


def parse_episode(line: bytes, *, has_reward_functions: bool = False) -> EpisodeStats | None:
    """What is wanted of a line; None where it is torn, or no episode of a training step."""
    fields = _parse_fields(line)
    try:
        step, reward = fields["agent"]["step"], fields["reward"]
        words = [fields[key] for key in ("episode_id", "environment", "group_id", "stop_reason")]
    except (KeyError, TypeError):
        return None
    if not isinstance(step, int) or not all(isinstance(word, str) for word in words):
        return None
    name, environment, task, reason = words
    # Without functions, a part that is called like the environment is one of its own parts.
    given = _get_dict(fields, "rewards").get(environment) if has_reward_functions else reward
    sampled = _get_dict(fields, "usage").get("completion_tokens")
    return EpisodeStats(
        name, step, environment, task, reason, _as_float(reward), _as_float(given),
        sampled if isinstance(sampled, int) else 0, _parse_fault(fields.get("error")),
    )  # fmt: skip


def _parse_fields(line: bytes) -> dict[str, Any]:
    """What stands around messages and tokens; all of it where that is not JSON by itself.

    Behind the tools nobody names keys of his own, so that the last of these are the episode's.
    """
    head, parts, tokens = (
        line.find(_MESSAGES_KEY),
        line.rfind(_REWARDS_KEY),
        line.rfind(_TOKENS_KEY),
    )
    whole = line.endswith(b"}\n") and 0 < head < parts < tokens
    for text in (line[:head] + line[parts:tokens] + b"}", line) if whole else (line,):
        try:
            found = from_json(text)
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}
    return {}


def _get_dict(fields: dict[str, Any], key: str) -> dict[str, Any]:
    found = fields.get(key)
    return found if isinstance(found, dict) else {}


def _parse_fault(error: Any) -> Fault | None:
    try:
        return None if error is None else Fault.model_validate(error)
    except ValidationError:
        return None


def _as_float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None
