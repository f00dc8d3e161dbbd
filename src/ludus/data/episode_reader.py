"""Reading `episodes.jsonl`: single episodes, and what a resumed run must know of a million of them.

Nothing here writes. Files are streamed: no more than a block and one line is held at a time.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import SchemaValidator, core_schema, from_json

from ludus.data.episode import Episode, StopReason, Usage
from ludus.errors import RunError

EPISODE_VERSION = 1
_BLOCK_BYTES = 4 << 20
_NO_INDEX = -1
_MAX_LISTED = 10
_log = logging.getLogger("ludus.data")
# Parses a line in full and builds nothing of it: a tenth of the time that `from_json` takes.
_ANY_OBJECT = SchemaValidator(core_schema.typed_dict_schema({}, extra_behavior="ignore"))
_REASONS = {reason.encode(): reason.value for reason in StopReason}
_COUNT = rb"(0|[1-9][0-9]{0,17}+)"
# Three digits of exponent could overflow a float; such a number is left to the JSON parser.
_NUMBER = rb"(?:null|(-?+(?:0|[1-9][0-9]{0,20}+)(?:\.[0-9]{1,40}+)?+(?:[eE][-+]?+[0-9]{1,2}+)?+))"
# Eight digits at most, so that one odd id cannot ask for gigabytes of marks.
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


def format_episode_id(run: str, index: int) -> str:
    """The id of the plan's episode at `index`; `run` is eight hex digits."""
    return f"{run}-{index:06d}"


class EpisodeHead(NamedTuple):
    """What stands first in a line: all that a resumed run needs."""

    episode_id: str
    plan_index: int | None
    """Its index in the plan; None where the id is not of the form that `episode_id` gives."""
    attempt: int
    stop_reason: str
    reward: float | None
    prompt_tokens: int
    completion_tokens: int
    cost: float | None

    @classmethod
    def from_episode(cls, episode: Episode | _HeadFields) -> EpisodeHead:
        """The head of the line that this episode makes. What is not finite is written as null."""
        usage, ours = episode.usage, _ID_PATTERN.fullmatch(episode.episode_id)
        return cls(
            episode.episode_id,
            int(ours[1]) if ours else None,
            episode.attempt,
            episode.stop_reason.value,
            _finite_or_none(episode.reward),
            usage.prompt_tokens,
            usage.completion_tokens,
            _finite_or_none(usage.cost),
        )


class _HeadFields(BaseModel):
    """The fields of an episode that make its head, in any order and among any others."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    episode_id: str
    attempt: int = 1
    stop_reason: StopReason
    reward: float | None = None
    usage: Usage = Usage()


def _finite_or_none(number: float | None) -> float | None:
    return number if number is not None and isfinite(number) else None


def episodes(path: str | Path, *, strict: bool = False) -> Iterator[Episode]:
    """Every episode of a run folder or a file of episodes, retries and all.

    A last line that is cut off is passed over: its writer was killed, or is writing it just now.
    Any other line that is no episode is skipped, and the log says which ones were; where `strict`
    is True, the first of them raises `RunError`.
    """
    path = Path(path).expanduser()
    path = path / "episodes.jsonl" if path.is_dir() else path
    skipped: list[int] = []
    for number, line in numbered_lines(path):
        try:
            yield Episode.from_line(line)
        except ValidationError as error:
            parse_head(line, path, number)  # Raises where it is of a later version.
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
    """`3 damaged lines (4, 9, 17)`, of which the first few are named."""
    named = ", ".join(map(str, first)) + (", …" if count > len(first) else "")
    return f"{count:,} damaged line{'s' if count != 1 else ''} ({named})"


def find_episode(path: Path, id_or_index: str) -> Episode:
    """The episode with this id, or at this index of the plan (`"17"`).

    Where it was tried again, the last attempt that is not broken; only broken ones: the last.
    Where no line is numbered, because they were imported, an index counts the lines.
    """
    index = int(id_or_index) if id_or_index.isascii() and id_or_index.isdecimal() else _NO_INDEX
    best: dict[bool, tuple[int, bytes]] = {}
    lowest, highest = _NO_INDEX, _NO_INDEX
    at_place: tuple[int, bytes] | None = None
    for place, (number, line) in enumerate(numbered_lines(path)):
        if place == index:
            at_place = number, line
        if (head := parse_head(line, path, number)) is None:
            continue
        if head.episode_id == id_or_index or head.plan_index == index:
            best[not StopReason(head.stop_reason).is_fault] = number, line
        if head.plan_index is not None:
            highest = max(highest, head.plan_index)
            lowest = head.plan_index if lowest == _NO_INDEX else min(lowest, head.plan_index)
    if not best and highest == _NO_INDEX and at_place is not None:
        return _parse_episode(path, *at_place)
    if not best:
        there = "none that are numbered" if highest == _NO_INDEX else f"{lowest} to {highest}"
        raise RunError(f"There is no episode {id_or_index!r} in {path}. It holds {there}.")
    return _parse_episode(path, *(best.get(True) or best[False]))


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file and their numbers, from 1. Empty ones are passed over."""
    for number, line in enumerate(read_lines(path), 1):
        if not line.isspace():
            yield number, line


def read_lines(path: Path) -> Iterator[bytes]:
    """All lines of a file, as they are."""
    try:
        with path.open("rb", buffering=_BLOCK_BYTES) as file:
            yield from file
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error


def has_canonical_prefix(line: bytes) -> bool:
    """Whether an episode begins as this version writes them; then the rest is taken on trust."""
    return _CANONICAL_PREFIX.match(line) is not None


def is_json_object(line: bytes) -> bool:
    """Whether all of a line is JSON, and UTF-8."""
    try:
        _ANY_OBJECT.validate_json(line)
    except ValueError:
        return False
    return True


def parse_head(line: bytes, path: Path, number: int) -> EpisodeHead | None:
    """The head of a line, or None where the line is no episode.

    A regular expression reads the head as this version writes it. Other writers may order or
    space the fields otherwise: then the line is parsed. So is one that does not end as lines do,
    and one with a zero byte, which a power failure can leave in the middle of a file.
    """
    found = _HEAD_PATTERN.match(line)
    if found is None or not line.endswith(b"}\n") or 0 in line:
        return _parse_head_json(line, path, number)
    name, index, attempt, reason, reward, prompt, completion, cost = found.groups()
    # `Head(...)` does the same in twice the time.
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
        ),
    )


def _parse_head_json(line: bytes, path: Path, number: int) -> EpisodeHead | None:
    try:
        fields = from_json(line)
        version = (
            fields.get("version", EPISODE_VERSION) if isinstance(fields, dict) else EPISODE_VERSION
        )
        if version == EPISODE_VERSION:
            return EpisodeHead.from_episode(_HeadFields.model_validate(fields))
    except ValueError:
        return None
    raise RunError(
        f"{path}:{number} is of version {version!r} of the episode format, and this Ludus reads "
        f"version {EPISODE_VERSION}. Install a newer Ludus."
    )


def _parse_episode(path: Path, number: int, line: bytes) -> Episode:
    try:
        return Episode.from_line(line)
    except ValidationError as error:
        raise _damaged_line_error(path, number, error) from error


def _damaged_line_error(path: Path, number: int, error: ValidationError) -> RunError:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"]))
    return RunError(f"{path}:{number} is no episode: {field + ': ' if field else ''}{first['msg']}")
