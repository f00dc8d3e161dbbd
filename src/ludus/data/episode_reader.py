"""Reading an `episodes.jsonl`: whole episodes, the head of each line, and the index of a run.

Nothing here writes. Files are streamed: no more than a block and one line is held at a time. Most
of a line is messages, which are slow to parse. A resumed run needs the first fields only, which a
regular expression reads. The index of a run needs a byte per episode of the plan, and about 115
bytes per task for the rewards.
"""

from __future__ import annotations

import logging
import re
from codecs import BOM_UTF8
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, cast
from zlib import crc32

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from ludus.data.episode import Episode, StopReason, Usage
from ludus.data.files import Checksum
from ludus.data.interval_estimates import TaskRewards
from ludus.data.json_files import is_json_object, numbered_lines, read_lines
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
            episode.reward if isfinite(episode.reward or 0.0) else None,
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.cost if isfinite(usage.cost or 0.0) else None,
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


def has_canonical_head(line: bytes) -> bool:
    """Whether an episode's line begins as this version writes it, so that it need not be parsed."""
    return _CANONICAL_PREFIX.match(line) is not None


def parse_head(line: bytes, path: Path, number: int) -> EpisodeHead | None:
    """The head of a line, or None if the line is not an episode.

    A regular expression matches the head as this version writes it. A line is parsed as JSON if
    its fields are ordered or spaced differently, if it does not end with `}` and a newline, and
    if it has a null byte, which a power failure can leave in the middle of a file.
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
        version = fields.get("version", 1) if isinstance(fields, dict) else 1
        if version == EPISODE_VERSION:
            return EpisodeHead.from_episode(_HeadFields.model_validate(fields))
    except ValueError:
        return None
    raise RunError(
        f"{path}:{number} has version {version!r} of the episode format, and this Ludus reads "
        f"version {EPISODE_VERSION}. Install a newer Ludus."
    )


_MAX_LISTED = 10
_log = logging.getLogger("ludus.data")


def episodes(path: str | Path, *, strict: bool = False) -> Iterator[Episode]:
    """Read the episodes of a run folder or of a file, including retries of the same episode.

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
    """Format skipped lines as `3 damaged lines (4, 9, 17)`; `first` are the first few numbers."""
    numbers = ", ".join(map(str, first)) + (", …" if count > len(first) else "")
    return f"{count:,} damaged line{'s' if count != 1 else ''} ({numbers})"


def find_episode(path: Path, id_or_index: str) -> Episode:
    """Find the episode with an id, or at an index of the plan (`"17"`).

    Of several attempts, the last unbroken one, or else the last. In an imported run, whose ids have
    no index, an index counts the lines.
    """
    is_index = id_or_index.isascii() and id_or_index.isdecimal()
    index = int(id_or_index) if is_index else None
    best: dict[bool, tuple[int, bytes]] = {}
    highest: int | None = None
    for position, (number, line) in enumerate(numbered_lines(path)):
        if (head := parse_head(line, path, number)) is None:
            continue
        if head.plan_index is not None:
            highest = max(highest or 0, head.plan_index)
        own_index = position if head.plan_index is None else head.plan_index
        if id_or_index == head.episode_id or index == own_index:
            best[not StopReason(head.stop_reason).is_fault] = number, line
    if not best:
        known = "" if highest is None else f" Its highest index is {highest}."
        raise RunError(f"{path} has no episode {id_or_index!r}.{known}")
    number, line = best.get(True) or best[False]
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


_GROWTH_BYTES = 64 << 10
# The mark of an episode: missing, the kind of its fault, or played.
_FAULTS = dict(enumerate((reason.value for reason in StopReason if reason.is_fault), 1))
_PLAYED = len(_FAULTS) + 1
_MARKS = {reason.value: _PLAYED for reason in StopReason} | {name: m for m, name in _FAULTS.items()}


@dataclass(slots=True)
class ResumeTotals:
    """Sums over the indexed lines of a journal. Tokens and cost include broken attempts."""

    rewards: TaskRewards = field(default_factory=TaskRewards)
    """Those that count."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    """US dollars; None while no price is known."""
    stop_reasons: Counter[str] = field(default_factory=Counter)
    """Number of episodes by stop reason; of an episode with retries only the last one counts."""
    highest_attempt: int = 0

    @property
    def episodes(self) -> int:
        """Number of recorded episodes, however many attempts each had."""
        return self.stop_reasons.total()

    @property
    def broken(self) -> int:
        """Episodes with broken attempts only."""
        return sum(self.stop_reasons[reason] for reason in _FAULTS.values())


@dataclass(slots=True)
class ResumeIndex:
    """Which episodes of a plan are recorded, and the totals of all lines.

    Episodes of other plans are not indexed, but are included in the totals.
    """

    run: str | None = None
    """The eight hex digits that the plan's ids begin with; by default from the first id."""
    totals: ResumeTotals = field(default_factory=ResumeTotals)
    foreign: int = 0
    """Lines with the id of another run, or with an id of another format."""
    duplicates: int = 0
    """Lines of an episode that was played already; only their usage is in the totals."""
    unreadable: int = 0
    unreadable_lines: list[int] = field(default_factory=list)
    """The numbers of the first ten lines that are not episodes."""
    checksum: Checksum | None = field(default_factory=Checksum, compare=False)
    """Of the file; None if lines are damaged, so that the next reader reports them again."""
    _marks: bytearray = field(default_factory=bytearray, repr=False)

    def pending_indices(self, planned: int, *, retry_broken: bool = True) -> Iterator[int]:
        """The indices below `planned` of episodes that are still to be played, in order."""
        done, marks = (_PLAYED,) if retry_broken else (_PLAYED, *_FAULTS), self._marks
        return (at for at in range(planned) if at >= len(marks) or marks[at] not in done)

    def count_pending(self, planned: int, *, retry_broken: bool = True) -> int:
        """How many `pending_indices` there are, without going through them."""
        done = (_PLAYED,) if retry_broken else (_PLAYED, *_FAULTS)
        marks = self._marks[:planned]
        return planned - sum(marks.count(mark) for mark in done)

    def add(self, heads: Iterable[EpisodeHead]) -> None:
        """Index more lines."""
        deque(self.count(heads), maxlen=0)

    def count(self, heads: Iterable[EpisodeHead]) -> Iterator[float | None]:
        """Index more lines, and yield of each the reward that counts; None if there is none.

        One loop over local variables, for runs of millions of episodes.
        """
        totals, marks, reasons = self.totals, self._marks, self.totals.stop_reasons
        for name, index, attempt, reason, reward, prompt, completion, cost, task in heads:
            totals.prompt_tokens += prompt
            totals.completion_tokens += completion
            if cost is not None:
                totals.cost = cost if totals.cost is None else totals.cost + cost
            if attempt > totals.highest_attempt:
                totals.highest_attempt = attempt
            mark = _MARKS[reason]
            if self.run is None and index is not None:
                self.run = name[:8]
            if index is None or not name.startswith(self.run or name):
                self.foreign += 1
            else:
                if index >= len(marks):
                    marks.extend(bytes(index + _GROWTH_BYTES - len(marks)))
                if previous := marks[index]:
                    if previous == _PLAYED:
                        self.duplicates += 1
                        yield None
                        continue
                    reasons[_FAULTS[previous]] -= 1
                marks[index] = mark
            reasons[reason] += 1
            if reward is not None and mark == _PLAYED:
                totals.rewards.add(task, reward)
                yield reward
            else:
                yield None


def read_resume_index(
    path: Path, *, run: str | None = None, checksum: Checksum | None = None
) -> ResumeIndex:
    """Build the index of an `episodes.jsonl` from the heads of its lines.

    Lines that are not episodes are counted. `checksum` covers the file at an earlier time: while it
    still matches, only the heads of the lines that it covers are read. All other lines are
    validated as JSON, because damage within a line may leave its head intact.
    """
    index = ResumeIndex(run=run)
    try:
        index.add(_read_heads(path, checksum or Checksum(), index))
    except _JournalChanged:
        return read_resume_index(path, run=run)
    return index


class _JournalChanged(Exception):
    """The beginning of a journal does not match its checksum."""


def _read_heads(path: Path, known: Checksum, index: ResumeIndex) -> Iterator[EpisodeHead]:
    """Yield the heads of a journal; note unreadable lines and the checksum in the index."""
    # Local variables and plain integers: this loop runs over millions of lines.
    known_size, size, crc = known.size, 0, 0
    unchanged = known_size == 0
    for number, line in enumerate(read_lines(path), 1):
        size += len(line)
        crc = crc32(line, crc)
        if size == known_size:
            unchanged = crc == known.crc32
            if not unchanged:
                break
        if line.isspace():
            continue
        head = parse_head(line, path, number)
        if head is not None and (size <= known_size or is_json_object(line)):
            yield head
        elif line.endswith(b"\n"):
            index.unreadable += 1
            if index.unreadable <= _MAX_LISTED:
                index.unreadable_lines.append(number)
    if not unchanged:
        raise _JournalChanged
    index.checksum = None if index.unreadable else Checksum(size, crc)
