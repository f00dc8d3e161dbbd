"""Index of a journal for resuming: which episodes are recorded, and their totals.

It needs a byte per episode of the plan, and about 115 bytes per task for the rewards.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from ludus.data.episode import StopReason
from ludus.data.episode_reader import EpisodeHead, parse_head
from ludus.data.estimates import TaskRewards
from ludus.data.files import Checksum
from ludus.data.json_files import is_json_object, read_lines

_MAX_REMEMBERED = 10
_GROWTH_BYTES = 64 << 10
# The mark of an episode: missing, the kind of its fault, or played.
_MISSING = 0
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
    """The eight hex digits that the plan's ids begin with; by default those of the first id."""
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
        """The indices below `planned` that are still to be played, in order."""
        done = (_PLAYED,) if retry_broken else (_PLAYED, *_FAULTS)
        return (index for index in range(planned) if self._mark(index) not in done)

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
            if index is None or not self._belongs_to_run(name):
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

    def add_unreadable(self, number: int) -> None:
        self.unreadable += 1
        if self.unreadable <= _MAX_REMEMBERED:
            self.unreadable_lines.append(number)

    def _mark(self, index: int) -> int:
        return self._marks[index] if 0 <= index < len(self._marks) else _MISSING

    def _belongs_to_run(self, name: str) -> bool:
        if self.run is None:
            self.run = name[:8]
        return name.startswith(self.run)


def read_resume_index(
    path: Path, *, run: str | None = None, checksum: Checksum | None = None
) -> ResumeIndex:
    """Build the index of an `episodes.jsonl` from the heads of its lines.

    Lines that are not episodes are counted. `checksum` is that of the file at an earlier time:
    where it still matches, only the heads of the lines that it covers are read. All other lines
    are validated as JSON, because damage within a line may leave its head intact.
    """
    if checksum is not None and (index := _read_lines(path, run, checksum)) is not None:
        return index
    index = _read_lines(path, run, Checksum())
    assert index is not None
    return index


def _read_lines(path: Path, run: str | None, checksum: Checksum) -> ResumeIndex | None:
    """Build the index; None if the beginning of the file does not match the checksum."""
    index, reader = ResumeIndex(run=run), _HeadReader(path, checksum)
    index.add(reader.heads(index.add_unreadable))
    index.checksum = None if index.unreadable else reader.checksum
    return index if reader.unchanged else None


class _HeadReader:
    """Reads the heads of a journal and computes its checksum, in one pass."""

    def __init__(self, path: Path, known: Checksum) -> None:
        self._path = path
        self._known = known
        self.unchanged = known.size == 0
        self.checksum = Checksum()
        """Of the whole file, once all heads are read."""

    def heads(self, unreadable: Callable[[int], None]) -> Iterator[EpisodeHead]:
        # Local variables and plain integers: this loop runs over millions of lines.
        path, known, size, crc = self._path, self._known.size, 0, 0
        for number, line in enumerate(read_lines(path), 1):
            size += len(line)
            crc = crc32(line, crc)
            if size == known:
                self.unchanged = crc == self._known.crc32
                if not self.unchanged:
                    return
            if line.isspace():
                continue
            head = parse_head(line, path, number)
            if head is not None and (size <= known or is_json_object(line)):
                yield head
            elif line.endswith(b"\n"):
                unreadable(number)
        self.checksum = Checksum(size, crc)
