"""Rows written to files, in the order of the episodes that they are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from ludus.curation.catalog import UNREADABLE, Catalog
from ludus.curation.exporters import nemo_gym_writer, openenv_writer
from ludus.curation.filters import DUPLICATE, MALFORMED_CALL
from ludus.curation.pairs import iter_pairs
from ludus.curation.split import TEST, TRAIN
from ludus.curation.training_rows import (
    MalformedCallError,
    RowConfig,
    check_calls,
    dpo_row,
    sft_row,
    without_call_ids,
)
from ludus.data.episode import Episode, digest_64
from ludus.data.episode_reader import has_canonical_prefix
from ludus.data.tool_schema import JsonObject

OutputKind = Literal["sft", "dpo", "episodes", "openenv", "nemo-gym", "nemo-gym-input"]
"""What a row is."""
CurateProgress = Callable[[str, int, int | None], None]
"""Told what is being done, how much of it is done, and how much there is if that is known."""
_ROW_BUILDERS: dict[str, Callable[[Episode, RowConfig], JsonObject]] = {
    "sft": sft_row,
    "openenv": lambda episode, form: openenv_writer.build_record(episode),
    "nemo-gym": lambda episode, form: nemo_gym_writer.build_rollout(episode),
    "nemo-gym-input": lambda episode, form: nemo_gym_writer.build_input(episode),
}
_PROGRESS_INTERVAL_ROWS = 1_000
_EPISODE_CACHE_SIZE = 256
"""Episodes that are at hand for the next pair: a good attempt is in many."""


@dataclass(slots=True)
class RejectedRows:
    """What turned out to be no row only when all of it was read."""

    rows: dict[int, str] = field(default_factory=dict)
    """Rows of the catalog, and the reasons."""
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """Better and worse attempts that say the same."""


def write_rows(
    catalog: Catalog,
    draft: Path,
    *,
    to: OutputKind,
    config: RowConfig,
    sides: Sequence[str],
    dedupe: bool,
    on_progress: CurateProgress,
) -> dict[str, int]:
    """Write `train.jsonl` and its like, and return how many rows went into each."""
    written = dict.fromkeys(sides, 0)
    unwritten = RejectedRows()
    if to == "dpo":
        made = _iter_pair_rows(catalog, config, unwritten)
        total = catalog.sql("SELECT count(*) FROM pairs")[0][0]
    else:
        made = _iter_rows(catalog, to, config, dedupe, unwritten)
        total = catalog.kept
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {
            side: stack.enter_context((draft / f"{side}.jsonl").open("wb", buffering=1 << 20))
            for side in sides
        }
        for number, (side, line) in enumerate(made):
            files[side].write(line)
            written[side] += 1
            if number % _PROGRESS_INTERVAL_ROWS == 0:
                on_progress("writing rows", number, total)
    _exclude_rejected(catalog, unwritten, to)
    return written


def write_left_out(catalog: Catalog, file: Path) -> None:
    """A line for each episode that was left out: where it stands, its id, and the reason."""
    reasons = list(catalog.excluded_counts)
    with file.open("wb", buffering=1 << 20) as out:
        for row, mark, line in catalog.read_lines(
            "SELECT rowid, list_position(?, reason) FROM episodes WHERE reason NOT NULL", reasons
        ):
            path, number = catalog.location(row)
            told = {"file": str(path), "line": number, "reason": reasons[mark - 1]}
            out.write(_dump_line({**told, "episode_id": _episode_id(line)}))


def _episode_id(line: bytes) -> str | None:
    try:
        fields = from_json(line.strip())
    except ValueError:
        return None
    return fields.get("episode_id") if isinstance(fields, dict) else None


def _iter_rows(
    catalog: Catalog, to: OutputKind, config: RowConfig, dedupe: bool, rejected: RejectedRows
) -> Iterator[tuple[str, bytes]]:
    make = _ROW_BUILDERS.get(to)
    seen: set[int] = set()
    for row, mark, line in catalog.read_lines(
        f"SELECT rowid, CASE WHEN side = '{TEST}' THEN 2 ELSE 1 END FROM episodes "
        "WHERE reason IS NULL"
    ):
        side = TEST if mark == 2 else TRAIN
        if make is None and line.endswith(b"}\n") and has_canonical_prefix(line):
            yield side, line
        elif (episode := _parse_episode(line, row, to, rejected)) is not None:
            made = make(episode, config) if make is not None else None
            if made is not None and to == "sft" and dedupe and _is_duplicate(made, seen):
                rejected.rows[row] = DUPLICATE
            else:
                yield side, line.strip() + b"\n" if made is None else _dump_line(made)


def _is_duplicate(row: JsonObject, seen: set[int]) -> bool:
    """Whether a row says what one before it said: what told their episodes apart was dropped."""
    said = row.get("messages") or [*row["prompt"], *row["completion"]]
    name = digest_64(to_json([without_call_ids(said), row["tools"]], inf_nan_mode="null").decode())
    if name in seen:
        return True
    seen.add(name)
    return False


def _iter_pair_rows(
    catalog: Catalog, config: RowConfig, rejected: RejectedRows
) -> Iterator[tuple[str, bytes]]:
    @lru_cache(_EPISODE_CACHE_SIZE)
    def read(row: int) -> Episode | None:
        return _parse_episode(catalog.read_line(row), row, "dpo", rejected)

    for better, worse, side in iter_pairs(catalog):
        chosen, other = read(better), read(worse)
        if chosen is None or other is None:
            continue
        made = dpo_row(chosen, other, config)
        if without_call_ids(made["chosen"]) == without_call_ids(made["rejected"]):
            rejected.pairs.append((better, worse))
        else:
            yield side or TRAIN, _dump_line(made)


def _parse_episode(line: bytes, row: int, to: OutputKind, rejected: RejectedRows) -> Episode | None:
    try:
        episode = Episode.from_line(line.strip())
        if to in ("sft", "dpo"):
            check_calls(episode.messages)
        return episode
    except ValidationError:
        rejected.rows[row] = UNREADABLE
    except MalformedCallError:
        rejected.rows[row] = MALFORMED_CALL
    return None


def _exclude_rejected(catalog: Catalog, rejected: RejectedRows, to: OutputKind) -> None:
    if not rejected.rows and not rejected.pairs:
        return
    rows = sorted(rejected.rows.items())
    catalog.create_table("unwritten", {"row": "BIGINT", "why": "VARCHAR"}, rows)
    for why in sorted(set(rejected.rows.values())):
        catalog.exclude(why, "rowid IN (SELECT row FROM unwritten WHERE why = ?)", why)
    if to == "dpo":
        catalog.create_table("equal", {"chosen": "BIGINT", "rejected": "BIGINT"}, rejected.pairs)
        catalog.exclude(
            "equal sides",
            f"rowid IN (SELECT unnest([chosen, rejected]) FROM equal) AND {_NOT_IN_ANY_PAIR}",
            detail="better and worse attempts say the same",
        )
        catalog.exclude("in no pair", _NOT_IN_ANY_PAIR, detail="the other side cannot be used")


_NOT_IN_ANY_PAIR = """rowid NOT IN (
    SELECT unnest([chosen, rejected]) FROM (FROM pairs EXCEPT FROM equal)
    WHERE chosen NOT IN (SELECT row FROM unwritten) AND rejected NOT IN (SELECT row FROM unwritten)
)"""


def _dump_line(row: JsonObject) -> bytes:
    # A reward that is not a number is none; and "NaN" is no JSON.
    return to_json(row, inf_nan_mode="null") + b"\n"
