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
from ludus.curate.rows import Form, MalformedCall, check_calls, dpo_row, sft_row
from ludus.curate.select import MALFORMED
from ludus.curate.split import TEST, TRAIN
from ludus.data.episode import Episode
from ludus.data.lines import begins_as_written
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
Failed = dict[int, str]
"""Rows of the catalog that could not be written, and the reasons."""


def write_rows(
    catalog: Catalog, draft: Path, *, to: To, form: Form, sides: Sequence[str], watch: Watch
) -> dict[str, int]:
    """Write `train.jsonl` and its like, and return how many rows went into each.

    What turns out to be no episode, or no row, only when all of it is read is left out here.
    """
    written = dict.fromkeys(sides, 0)
    failed: Failed = {}
    make = _paired if to == "dpo" else _single
    total = catalog.kept
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {
            side: stack.enter_context((draft / f"{side}.jsonl").open("wb", buffering=1 << 20))
            for side in sides
        }
        for number, (side, line) in enumerate(make(catalog, to, form, failed)):
            files[side].write(line)
            written[side] += 1
            if number % _EVERY == 0:
                watch("writing rows", number, total)
    if failed:
        _leave_out(catalog, failed, to)
    return written


def explain(catalog: Catalog, file: Path) -> None:
    """A line for each episode that was left out: where it stands, its id, and the reason."""
    reasons = list(catalog.left_out)
    with file.open("wb", buffering=1 << 20) as out:
        for row, mark, line in catalog.lines(
            "SELECT rowid, list_position(?, reason) FROM episodes WHERE reason NOT NULL", reasons
        ):
            path, number = catalog.place(row)
            told = {"file": str(path), "line": number, "reason": reasons[mark - 1]}
            out.write(_line({**told, "episode_id": _name(line)}))


def _name(line: bytes) -> str | None:
    try:
        fields = from_json(line)
    except ValueError:
        return None
    return fields.get("episode_id") if isinstance(fields, dict) else None


def _single(catalog: Catalog, to: To, form: Form, failed: Failed) -> Iterator[tuple[str, bytes]]:
    make = _MAKERS.get(to)
    for row, mark, line in catalog.lines(
        f"SELECT rowid, CASE WHEN side = '{TEST}' THEN 2 ELSE 1 END FROM episodes "
        "WHERE reason IS NULL"
    ):
        side = TEST if mark == 2 else TRAIN
        if make is None and begins_as_written(line):
            yield side, line + b"\n"
        elif (episode := _episode(line, row, to, failed)) is not None:
            yield side, line + b"\n" if make is None else _line(make(episode, form))


def _paired(catalog: Catalog, to: To, form: Form, failed: Failed) -> Iterator[tuple[str, bytes]]:
    for better, worse, side in pairs(catalog):
        chosen = _episode(catalog.line(better), better, to, failed)
        rejected = _episode(catalog.line(worse), worse, to, failed)
        if chosen is not None and rejected is not None:
            yield side or TRAIN, _line(dpo_row(chosen, rejected, form))


def _episode(line: bytes, row: int, to: To, failed: Failed) -> Episode | None:
    try:
        episode = Episode.from_line(line)
        if to in ("sft", "dpo"):
            check_calls(episode.messages)
        return episode
    except ValidationError:
        failed[row] = UNREADABLE
    except MalformedCall:
        failed[row] = MALFORMED
    return None


def _leave_out(catalog: Catalog, failed: Failed, to: To) -> None:
    catalog.table("failed", {"row": "BIGINT", "why": "VARCHAR"}, sorted(failed.items()))
    for why in sorted(set(failed.values())):
        catalog.leave_out(why, "rowid IN (SELECT row FROM failed WHERE why = ?)", why)
    if to == "dpo":
        catalog.leave_out(
            "in no pair",
            """rowid NOT IN (SELECT unnest([chosen, rejected]) FROM pairs WHERE chosen NOT IN
                (SELECT row FROM failed) AND rejected NOT IN (SELECT row FROM failed))""",
            detail="the other side cannot be used",
        )


def _line(row: JsonObject) -> bytes:
    # A reward that is not a number is none; and "NaN" is no JSON.
    return to_json(row, inf_nan_mode="null") + b"\n"
