"""Write the kept episodes as rows, in their order in the files."""

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
from ludus.curation.dedupe import DUPLICATE
from ludus.curation.exporters import nemo_gym_writer, openenv_writer
from ludus.curation.filters import MALFORMED_CALL
from ludus.curation.pairs import iter_pairs
from ludus.curation.split import TEST, TRAIN
from ludus.curation.training_rows import (
    MalformedCallError,
    RowConfig,
    check_calls,
    dpo_row,
    sft_row,
)
from ludus.data.episode import Episode
from ludus.data.episode_head import has_canonical_head
from ludus.data.messages import without_call_ids
from ludus.data.stable_hash import stable_hash
from ludus.data.tool_schema import JsonObject

OutputKind = Literal["sft", "dpo", "episodes", "openenv", "nemo-gym", "nemo-gym-input"]
CurateProgress = Callable[[str, int, int | None], None]
"""Called with the phase, how much of it is done, and the total if it is known."""
_ROW_BUILDERS: dict[str, Callable[[Episode, RowConfig], JsonObject]] = {
    "sft": sft_row,
    "openenv": lambda episode, config: openenv_writer.build_record(episode),
    "nemo-gym": lambda episode, config: nemo_gym_writer.build_rollout(episode),
    "nemo-gym-input": lambda episode, config: nemo_gym_writer.build_input(episode),
}
_PROGRESS_INTERVAL_ROWS = 1_000
_EPISODE_CACHE_SIZE = 256
"""Parsed episodes kept for the next pairs: a good attempt is part of many pairs."""
_NOT_IN_ANY_PAIR = """rowid NOT IN (
    SELECT unnest([chosen, rejected]) FROM (FROM pairs EXCEPT FROM equal)
    WHERE chosen NOT IN (SELECT row FROM unwritten) AND rejected NOT IN (SELECT row FROM unwritten)
)"""


@dataclass(slots=True)
class UnwrittenRows:
    """Episodes and pairs that were not written: parsing them showed that they are unusable."""

    rows: dict[int, str] = field(default_factory=dict)
    """Reason by row of the catalog."""
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """Rows of better and worse attempts with the same content."""

    def exclude_from(self, catalog: Catalog, to: OutputKind) -> None:
        """Exclude what was not written from the catalog, which listed it as kept."""
        rows = sorted(self.rows.items())
        catalog.create_table("unwritten", {"row": "BIGINT", "reason": "VARCHAR"}, rows)
        for reason in sorted(set(self.rows.values())):
            condition = "rowid IN (SELECT row FROM unwritten WHERE unwritten.reason = ?)"
            catalog.exclude(reason, condition, reason)
        if to == "dpo":
            catalog.create_table("equal", {"chosen": "BIGINT", "rejected": "BIGINT"}, self.pairs)
            catalog.exclude(
                "equal sides",
                f"rowid IN (SELECT unnest([chosen, rejected]) FROM equal) AND {_NOT_IN_ANY_PAIR}",
                detail="the better and the worse attempt are the same",
            )
            catalog.exclude("in no pair", _NOT_IN_ANY_PAIR, detail="the other attempt is unusable")


def write_rows(
    catalog: Catalog,
    draft: Path,
    *,
    to: OutputKind,
    config: RowConfig,
    splits: Sequence[str],
    dedupe: bool,
    progress: CurateProgress,
) -> dict[str, int]:
    """Write one JSONL file per split, and return their numbers of rows."""
    written = dict.fromkeys(splits, 0)
    unwritten = UnwrittenRows()
    if to == "dpo":
        rows = _iter_pair_rows(catalog, config, unwritten)
        total = catalog.sql("SELECT count(*) FROM pairs")[0][0]
    else:
        rows = _iter_rows(catalog, to, config, dedupe, unwritten)
        total = catalog.kept
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {
            split: stack.enter_context((draft / f"{split}.jsonl").open("wb", buffering=1 << 20))
            for split in splits
        }
        for number, (split, line) in enumerate(rows):
            files[split].write(line)
            written[split] += 1
            if number % _PROGRESS_INTERVAL_ROWS == 0:
                progress("writing rows", number, total)
    if unwritten.rows or unwritten.pairs:
        unwritten.exclude_from(catalog, to)
    return written


def write_left_out(catalog: Catalog, path: Path) -> None:
    """Write a line for each excluded episode: file, line number, reason and id."""
    reasons = list(catalog.excluded_counts)
    with path.open("wb", buffering=1 << 20) as file:
        for row, mark, line in catalog.read_lines(
            "SELECT rowid, list_position(?, reason) FROM episodes WHERE reason NOT NULL", reasons
        ):
            source, number = catalog.location(row)
            try:
                fields = from_json(line.strip())
            except ValueError:
                fields = None
            excluded = {
                "file": str(source),
                "line": number,
                "reason": reasons[mark - 1],
                "episode_id": fields.get("episode_id") if isinstance(fields, dict) else None,
            }
            file.write(_dump_line(excluded))


def _iter_rows(
    catalog: Catalog, to: OutputKind, config: RowConfig, dedupe: bool, unwritten: UnwrittenRows
) -> Iterator[tuple[str, bytes]]:
    """Yield the split and the line of each kept episode."""
    build_row = _ROW_BUILDERS.get(to)
    seen: set[int] = set()
    for row, mark, line in catalog.read_lines(
        f"SELECT rowid, CASE WHEN split = '{TEST}' THEN 2 ELSE 1 END FROM episodes "
        "WHERE reason IS NULL"
    ):
        split = TEST if mark == 2 else TRAIN
        if build_row is None and line.endswith(b"}\n") and has_canonical_head(line):
            yield split, line
            continue
        episode = _parse_episode(line, row, to, unwritten)
        if episode is None:
            continue
        if build_row is None:
            yield split, line.strip() + b"\n"
            continue
        built = build_row(episode, config)
        if to == "sft" and dedupe:
            # Episodes can differ in what is not part of the rows.
            messages = built.get("messages") or [*built["prompt"], *built["completion"]]
            contents = to_json([without_call_ids(messages), built["tools"]], inf_nan_mode="null")
            digest = stable_hash(contents.decode())
            if digest in seen:
                unwritten.rows[row] = DUPLICATE
                continue
            seen.add(digest)
        yield split, _dump_line(built)


def _iter_pair_rows(
    catalog: Catalog, config: RowConfig, unwritten: UnwrittenRows
) -> Iterator[tuple[str, bytes]]:
    """Yield the split and the line of each pair."""

    @lru_cache(_EPISODE_CACHE_SIZE)
    def read_episode(row: int) -> Episode | None:
        return _parse_episode(catalog.read_line(row), row, "dpo", unwritten)

    for better, worse, split in iter_pairs(catalog):
        chosen, other = read_episode(better), read_episode(worse)
        if chosen is None or other is None:
            continue
        row = dpo_row(chosen, other, config)
        if without_call_ids(row["chosen"]) == without_call_ids(row["rejected"]):
            unwritten.pairs.append((better, worse))
        else:
            yield split or TRAIN, _dump_line(row)


def _parse_episode(
    line: bytes, row: int, to: OutputKind, unwritten: UnwrittenRows
) -> Episode | None:
    try:
        episode = Episode.from_line(line.strip())
        if to in ("sft", "dpo"):
            check_calls(episode.messages)
        return episode
    except ValidationError:
        unwritten.rows[row] = UNREADABLE
    except MalformedCallError:
        unwritten.rows[row] = MALFORMED_CALL
    return None


def _dump_line(row: JsonObject) -> bytes:
    # A reward of NaN is written as null, because JSON has no NaN.
    return to_json(row, inf_nan_mode="null") + b"\n"
