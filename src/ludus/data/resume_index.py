"""What a resumed run must know of its journal: which episodes are there, and their totals.

One byte for each episode of the plan, so that a million of them are a megabyte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from zlib import crc32

from ludus.data.checksum import Checksum
from ludus.data.episode import StopReason
from ludus.data.episode_reader import EpisodeHead, is_json_object, parse_head, read_lines

_MAX_REMEMBERED = 10
_GROWTH_BYTES = 64 << 10
# What is known of an episode: nothing, how it broke, or that it was played.
_MISSING = 0
_FAULTS = dict(enumerate((reason.value for reason in StopReason if reason.is_fault), 1))
_PLAYED = len(_FAULTS) + 1
_MARKS = {reason.value: _PLAYED for reason in StopReason} | {name: m for m, name in _FAULTS.items()}


@dataclass(slots=True)
class JournalTotals:
    """Sums over episodes. Tokens and cost are of every line: a broken attempt was paid for too."""

    scored: int = 0
    reward_sum: float = 0.0
    reward_squares: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    """US dollars; None while no price is known."""
    stop_reasons: Counter[str] = field(default_factory=Counter)
    """How many episodes ended so; of one that was tried again, only how it ended at last."""
    highest_attempt: int = 0

    @property
    def episodes(self) -> int:
        return self.stop_reasons.total()

    @property
    def broken(self) -> int:
        """Episodes of which there is no attempt that the infrastructure did not end."""
        return sum(self.stop_reasons[reason] for reason in _FAULTS.values())

    @property
    def mean_reward(self) -> float | None:
        return self.reward_sum / self.scored if self.scored else None

    @property
    def reward_std(self) -> float | None:
        """The standard deviation of the rewards, as estimated from this sample."""
        if self.scored < 2:
            return None
        spread = self.reward_squares - self.reward_sum**2 / self.scored
        return sqrt(max(0.0, spread) / (self.scored - 1))


@dataclass(slots=True)
class ResumeIndex:
    """Which episodes of a plan are recorded, in one byte for each, and their totals.

    Episodes of another plan are in the totals as well, because they are in the file.
    """

    run: str | None = None
    """The eight hex digits that the plan's ids begin with; None: those of the first id."""
    totals: JournalTotals = field(default_factory=JournalTotals)
    foreign: int = 0
    """Lines with the id of another run, or of another form."""
    retries: int = 0
    """Lines for an episode of which only broken attempts had come before."""
    duplicates: int = 0
    """Lines for an episode that was played already; how they ended is left out of the totals."""
    unreadable: int = 0
    unreadable_lines: list[int] = field(default_factory=list)
    """The numbers of the first ten lines that are no episode."""
    checksum: Checksum | None = field(default_factory=Checksum, compare=False)
    """Of the file; None where some of its lines are damaged, so that they are found every time."""
    _marks: bytearray = field(default_factory=bytearray, repr=False)

    def is_played(self, index: int) -> bool:
        return self._mark(index) == _PLAYED

    def is_broken(self, index: int) -> bool:
        """Whether it was tried, and nothing but the infrastructure ever ended it."""
        return self._mark(index) in _FAULTS

    def pending_indices(self, planned: int, *, retry_broken: bool = True) -> Iterator[int]:
        """The indexes below `planned` that are still to be played, in order."""
        settled = (_PLAYED,) if retry_broken else (_PLAYED, *_FAULTS)
        return (index for index in range(planned) if self._mark(index) not in settled)

    def add(self, heads: Iterable[EpisodeHead]) -> None:
        """Count more lines. One loop over locals, because a run of a million waits for it."""
        totals, marks, reasons = self.totals, self._marks, self.totals.stop_reasons
        for name, place, attempt, reason, reward, prompt, completion, cost in heads:
            totals.prompt_tokens += prompt
            totals.completion_tokens += completion
            if cost is not None:
                totals.cost = cost if totals.cost is None else totals.cost + cost
            if attempt > totals.highest_attempt:
                totals.highest_attempt = attempt
            mark = _MARKS[reason]
            if place is None or not self._belongs_to_run(name):
                self.foreign += 1
            else:
                if place >= len(marks):
                    marks.extend(bytes(place + _GROWTH_BYTES - len(marks)))
                if before := marks[place]:
                    if before == _PLAYED:
                        self.duplicates += 1
                        continue
                    self.retries += 1
                    reasons[_FAULTS[before]] -= 1
                marks[place] = mark
            reasons[reason] += 1
            if reward is not None and mark == _PLAYED:
                totals.scored += 1
                totals.reward_sum += reward
                totals.reward_squares += reward * reward

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
    """What is recorded in an `episodes.jsonl`, from the heads of its lines.

    A line that is no episode is counted and left alone. `checksum` is that of the file at an
    earlier time: where it is still right, the lines that it covers are whole, and the rest of them
    is not parsed. All others are, because damage in a line leaves its head as it was.
    """
    if checksum is not None and (recorded := _read(path, run, checksum)) is not None:
        return recorded
    recorded = _read(path, run, Checksum())
    assert recorded is not None
    return recorded


def _read(path: Path, run: str | None, known: Checksum) -> ResumeIndex | None:
    """The same; None where the file does not begin as it did."""
    recorded, reader = ResumeIndex(run=run), _HeadReader(path, known)
    recorded.add(reader.heads(recorded.add_unreadable))
    recorded.checksum = None if recorded.unreadable else reader.checksum
    return recorded if reader.unchanged else None


class _HeadReader:
    """One pass over a journal: heads and the checksum at once."""

    def __init__(self, path: Path, known: Checksum) -> None:
        self._path = path
        self._known = known
        self.unchanged = known.size == 0
        self.checksum = Checksum()
        """Of the whole file, after all heads were read."""

    def heads(self, unreadable: Callable[[int], None]) -> Iterator[EpisodeHead]:
        # Locals and plain numbers: a run of a million waits for this loop.
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
