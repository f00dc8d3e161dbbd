"""Reading the lines of an `episodes.jsonl`: whole episodes, or only the head of each line.

Nothing here writes. Files are streamed: no more than a block and one line is held at a time. Most
of a line is messages, which take long to parse: to read its first fields, which are all that a
resumed run needs, a regular expression is enough.
"""

from __future__ import annotations

import logging
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from ludus.data.episode import Episode, StopReason, Usage
from ludus.data.json_files import numbered_lines
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
    """The index in the plan; None if the id has another format than `format_episode_id`'s."""
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
    """A number as the head of a line has it: None if it is not finite."""
    return number if number is not None and isfinite(number) else None


def has_canonical_head(line: bytes) -> bool:
    """Whether an episode's line begins as this version writes it, so that it need not be parsed."""
    return _CANONICAL_PREFIX.match(line) is not None


def parse_head(line: bytes, path: Path, number: int) -> EpisodeHead | None:
    """The head of a line, or None if the line is not an episode.

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


_NO_INDEX = -1
_MAX_LISTED = 10
_log = logging.getLogger("ludus.data")


def episodes(path: str | Path, *, strict: bool = False) -> Iterator[Episode]:
    """Yield the episodes of a run folder or of a file, including retries of the same episode.

    An incomplete last line is ignored: its writer was killed, or is still writing. Other lines
    that are not valid episodes are skipped with a log message, or raise `RunError` if `strict`.
    """
    path = Path(path).expanduser()
    path = path / "episodes.jsonl" if path.is_dir() else path
    skipped: list[int] = []
    for number, line in numbered_lines(path):
        try:
            yield Episode.from_line(line)
        except ValidationError as error:
            parse_head(line, path, number)  # Raises for a later version of the format.
            if not line.endswith(b"\n"):
                continue
            if strict:
                raise _damaged_line_error(path, number, error) from error
            skipped.append(number)
    if skipped:
        _log.warning(
            "%s: skipped %s.", path, format_damaged_lines(len(skipped), skipped[:_MAX_LISTED])
        )


def format_damaged_lines(count: int, first: Sequence[int]) -> str:
    """Format `3 damaged lines (4, 9, 17)`; `first` are the numbers of the first few lines."""
    numbers = ", ".join(map(str, first)) + (", …" if count > len(first) else "")
    return f"{count:,} damaged line{'s' if count != 1 else ''} ({numbers})"


def find_episode(path: Path, id_or_index: str) -> Episode:
    """Find the episode with an id, or at an index of the plan (`"17"`).

    Of several attempts the last one that is not broken, or else the last one. In an imported run,
    whose ids have no index, an index counts the lines.
    """
    index = int(id_or_index) if id_or_index.isascii() and id_or_index.isdecimal() else _NO_INDEX
    best: dict[bool, tuple[int, bytes]] = {}
    lowest, highest = _NO_INDEX, _NO_INDEX
    line_at_index: tuple[int, bytes] | None = None
    damaged: list[int] = []
    for position, (number, line) in enumerate(numbered_lines(path)):
        if position == index:
            line_at_index = number, line
        if (head := parse_head(line, path, number)) is None:
            damaged.append(number)
            continue
        if head.episode_id == id_or_index or head.plan_index == index:
            best[not StopReason(head.stop_reason).is_fault] = number, line
        if head.plan_index is not None:
            highest = max(highest, head.plan_index)
            lowest = head.plan_index if lowest == _NO_INDEX else min(lowest, head.plan_index)
    if not best and highest == _NO_INDEX and line_at_index is not None:
        return _parse_episode(path, *line_at_index)
    if not best:
        known = "" if highest == _NO_INDEX else f" It has the indices {lowest} to {highest}."
        if damaged:
            lines = format_damaged_lines(len(damaged), damaged[:_MAX_LISTED])
            known += f" It may be one of {lines}."
        raise RunError(f"{path} has no episode {id_or_index!r}.{known}")
    return _parse_episode(path, *(best.get(True) or best[False]))


def _parse_episode(path: Path, number: int, line: bytes) -> Episode:
    try:
        return Episode.from_line(line)
    except ValidationError as error:
        raise _damaged_line_error(path, number, error) from error


def _damaged_line_error(path: Path, number: int, error: ValidationError) -> RunError:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"]))
    location = f"{field}: " if field else ""
    return RunError(f"{path}:{number} is not a valid episode: {location}{first['msg']}")


def holds_episodes(file: Path) -> bool:
    """Whether a file holds episodes, judged by its first readable line, or else by its name."""
    for _, line in numbered_lines(file):
        try:
            fields = from_json(line)
        except ValueError:
            continue
        return isinstance(fields, dict) and "stop_reason" in fields
    return file.suffix == ".jsonl"


_NO_USAGE = Usage()


def episode_from_line(line: bytes) -> Episode:
    """The episode of a line, which is parsed when more than its outcome is needed."""
    head = parse_head(line, Path("episode"), 1)
    if head is None or StopReason(head.stop_reason).is_fault:
        return Episode.from_line(line)
    return cast(Episode, _UnparsedEpisode(line, head))


class _UnparsedEpisode:
    """Has the outcome of an episode without faults, and parses its line for other attributes."""

    error = None
    broken = False

    def __init__(self, line: bytes, head: EpisodeHead) -> None:
        self._line = line
        self.episode_id = head.episode_id
        self.attempt = head.attempt
        self.reward = head.reward
        self.group_id = head.group_id
        self.stop_reason = StopReason(head.stop_reason)
        if head.prompt_tokens == head.completion_tokens == 0 and head.cost is None:
            self.usage = _NO_USAGE

    def to_line(self) -> bytes:
        return self._line

    @cached_property
    def _episode(self) -> Episode:
        return Episode.from_line(self._line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._episode, name)
