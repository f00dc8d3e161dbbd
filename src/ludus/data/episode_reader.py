"""Reading the episodes of an `episodes.jsonl`, or a single one of them.

Nothing here writes. Files are streamed: no more than a block and one line is held at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.data.episode import Episode, StopReason
from ludus.data.episode_head import parse_head
from ludus.data.jsonl import numbered_lines
from ludus.errors import RunError

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
