"""The head of an episode's line: its first fields, which are all that a resumed run needs.

A regular expression reads them, because most of a line is messages, which take long to parse.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from ludus.data.episode import Episode, StopReason, Usage
from ludus.errors import RunError

EPISODE_VERSION = 1
_REASONS = {reason.encode(): reason.value for reason in StopReason}
_COUNT = rb"(0|[1-9][0-9]{0,17}+)"
# An exponent of three digits could overflow a float; such a number is left to the JSON parser.
_NUMBER = rb"(?:null|(-?+(?:0|[1-9][0-9]{0,20}+)(?:\.[0-9]{1,40}+)?+(?:[eE][-+]?+[0-9]{1,2}+)?+))"
# At most eight digits: `ResumeIndex` allocates a byte per index.
_INDEX = r"([0-9]{6}|[1-9][0-9]{6,7})"
_ID_PATTERN = re.compile(rf"[0-9a-f]{{8}}-{_INDEX}")
_CANONICAL_PREFIX = re.compile(
    rb'\{"version":1,"episode_id":"[0-9a-f]{8}-' + _INDEX.encode() + rb'","attempt":[0-9]+,"'
)
_HEAD_PATTERN = re.compile(
    rb'\{"version":1,"episode_id":"([0-9a-f]{8}-' + _INDEX.encode() + rb')","attempt":' + _COUNT
    + rb',"stop_reason":"(' + "|".join(StopReason).encode() + rb')","reward":' + _NUMBER
    + rb',"usage":\{"prompt_tokens":' + _COUNT + rb',"completion_tokens":' + _COUNT
    + rb',"cached_tokens":[0-9]+,"reasoning_tokens":[0-9]+,"cost":' + _NUMBER + rb"\}[,}]"
)  # fmt: skip


_GROUP_PATTERN = re.compile(rb'"seed":(?:null|-?[0-9]+),"group_id":"([^"\\]*)","agent":\{')


class EpisodeHead(NamedTuple):
    """The first fields of a line and its task, which are all that a resumed run needs."""

    episode_id: str
    plan_index: int | None
    """The index in the plan; None where the id has another format than `format_episode_id`'s."""
    attempt: int
    stop_reason: str
    reward: float | None
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    group_id: str

    @classmethod
    def from_episode(cls, episode: Episode | _HeadFields) -> EpisodeHead:
        """The head of the line of an episode, in which numbers that are not finite are null."""
        usage, match = episode.usage, _ID_PATTERN.fullmatch(episode.episode_id)
        return cls(
            episode.episode_id,
            int(match[1]) if match else None,
            episode.attempt,
            episode.stop_reason.value,
            _finite_head_number(episode.reward),
            usage.prompt_tokens,
            usage.completion_tokens,
            _finite_head_number(usage.cost),
            episode.group_id,
        )


class _HeadFields(BaseModel):
    """The fields of the head, in any order and among others, for lines of other writers."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    episode_id: str
    attempt: int = 1
    stop_reason: StopReason
    reward: float | None = None
    usage: Usage = Usage()
    group_id: str = ""


def _finite_head_number(number: float | None) -> float | None:
    """A number as the head of a line has it: None where it is not finite."""
    return number if number is not None and isfinite(number) else None


def has_canonical_head(line: bytes) -> bool:
    """Whether an episode's line begins as this version writes it, so that it need not be parsed."""
    return _CANONICAL_PREFIX.match(line) is not None


def parse_head(line: bytes, path: Path, number: int) -> EpisodeHead | None:
    """The head of a line, or None where the line is not an episode.

    A regular expression matches the head as this version writes it. A line is parsed as JSON where
    its fields are ordered or spaced differently, where it does not end with `}` and a newline, and
    where it has a null byte, which a power failure can leave in the middle of a file.
    """
    match = _HEAD_PATTERN.match(line)
    group = _GROUP_PATTERN.search(line, match.end()) if match is not None else None
    if match is None or group is None or not line.endswith(b"}\n") or 0 in line:
        return _parse_head_json(line, path, number)
    name, index, attempt, reason, reward, prompt, completion, cost = match.groups()
    # `EpisodeHead(...)` takes twice as long.
    return tuple.__new__(
        EpisodeHead,
        (
            name.decode(),
            int(index),
            int(attempt),
            _REASONS[reason],
            None if reward is None else float(reward),
            int(prompt),
            int(completion),
            None if cost is None else float(cost),
            group[1].decode(),
        ),
    )


def _parse_head_json(line: bytes, path: Path, number: int) -> EpisodeHead | None:
    try:
        fields = from_json(line.removeprefix(BOM_UTF8))
        version = (
            fields.get("version", EPISODE_VERSION) if isinstance(fields, dict) else EPISODE_VERSION
        )
        if version == EPISODE_VERSION:
            return EpisodeHead.from_episode(_HeadFields.model_validate(fields))
    except ValueError:
        return None
    raise RunError(
        f"{path}:{number} has version {version!r} of the episode format, and this Ludus reads "
        f"version {EPISODE_VERSION}. Install a newer Ludus."
    )
