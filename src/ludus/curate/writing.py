"""Rows written to files, in the order of the episodes that they are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from ludus.curate.catalog import UNREADABLE, Catalog
from ludus.curate.exporters import nemo_gym, openenv
from ludus.curate.pairs import pairs
from ludus.curate.rows import Form, dpo_row, sft_row
from ludus.curate.split import TRAIN
from ludus.data.episode import Episode
from ludus.data.tools import JsonObject

To = Literal["sft", "dpo", "episodes", "openenv", "nemo-gym", "nemo-gym-input"]
"""What a row is."""
Watch = Callable[[str, int, int | None], None]
"""Told what is being done, how much of it is done, and how much there is if that is known."""
_MAKERS: dict[str, Callable[[Episode, Form], JsonObject]] = {
    "sft": sft_row,
    "openenv": lambda episode, form: openenv.row(episode),
    "nemo-gym": lambda episode, form: nemo_gym.row(episode),
    "nemo-gym-input": lambda episode, form: nemo_gym.input_row(episode),
}
_EVERY = 1_000


def write_rows(
    catalog: Catalog, draft: Path, *, to: To, form: Form, sides: Sequence[str], watch: Watch
) -> dict[str, int]:
    """Write `train.jsonl` and its like, and return how many rows went into each.

    A line that turns out to be no episode only when all of it is read is left out here.
    """
    written = dict.fromkeys(sides, 0)
    unreadable: set[int] = set()
    make = _paired if to == "dpo" else _single
    total = catalog.kept
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {
            side: stack.enter_context((draft / f"{side}.jsonl").open("wb", buffering=1 << 20))
            for side in sides
        }
        for number, (side, line) in enumerate(make(catalog, to, form, unreadable)):
            files[side].write(line)
            written[side] += 1
            if number % _EVERY == 0:
                watch("writing rows", number, total)
    if unreadable:
        _leave_out(catalog, unreadable, to)
    return written


def explain(catalog: Catalog, file: Path) -> None:
    """A line for each episode that was left out: where it stands, its id, and the reason."""
    with file.open("wb", buffering=1 << 20) as lines:
        for row, reason in catalog.stream(
            "SELECT rowid, reason FROM episodes WHERE reason NOT NULL ORDER BY rowid"
        ):
            file, line = catalog.place(row)
            told = {"file": str(file), "line": line, "reason": reason}
            lines.write(_line({**told, "episode_id": _name(catalog.line(row))}))


def _name(line: bytes) -> str | None:
    try:
        fields = from_json(line)
    except ValueError:
        return None
    return fields.get("episode_id") if isinstance(fields, dict) else None


def _single(
    catalog: Catalog, to: To, form: Form, unreadable: set[int]
) -> Iterator[tuple[str, bytes]]:
    make = _MAKERS.get(to)
    for row, side in catalog.stream(
        "SELECT rowid, side FROM episodes WHERE reason IS NULL ORDER BY rowid"
    ):
        if make is None:
            line = catalog.line(row)
            yield side or TRAIN, line if line.endswith(b"}\n") else line.strip() + b"\n"
        elif (episode := _episode(catalog, row, unreadable)) is not None:
            yield side or TRAIN, _line(make(episode, form))


def _paired(
    catalog: Catalog, to: To, form: Form, unreadable: set[int]
) -> Iterator[tuple[str, bytes]]:
    for better, worse, side in pairs(catalog):
        chosen = _episode(catalog, better, unreadable)
        rejected = _episode(catalog, worse, unreadable)
        if chosen is not None and rejected is not None:
            yield side or TRAIN, _line(dpo_row(chosen, rejected, form))


def _episode(catalog: Catalog, row: int, unreadable: set[int]) -> Episode | None:
    try:
        return Episode.from_line(catalog.line(row))
    except ValidationError:
        unreadable.add(row)
        return None


def _leave_out(catalog: Catalog, unreadable: set[int], to: To) -> None:
    catalog.table("unreadable", {"row": "BIGINT"}, ((row,) for row in sorted(unreadable)))
    catalog.leave_out(UNREADABLE, "rowid IN (FROM unreadable)")
    if to == "dpo":
        catalog.leave_out(
            "in no pair",
            """rowid NOT IN (SELECT unnest([chosen, rejected]) FROM pairs
                WHERE chosen NOT IN (FROM unreadable) AND rejected NOT IN (FROM unreadable))""",
            detail="the other side cannot be read",
        )


def _line(row: JsonObject) -> bytes:
    return to_json(row) + b"\n"
