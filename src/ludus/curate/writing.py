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

from ludus.curate.catalog import UNREADABLE, Catalog
from ludus.curate.exporters import nemo_gym, openenv
from ludus.curate.pairs import pairs
from ludus.curate.rows import Form, MalformedCall, check_calls, dpo_row, sft_row, wording
from ludus.curate.select import DUPLICATE, MALFORMED
from ludus.curate.split import TEST, TRAIN
from ludus.data.episode import Episode, digest_64
from ludus.data.lines import has_canonical_prefix
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
_REMEMBERED = 256
"""Episodes that are at hand for the next pair: a good attempt is in many."""


@dataclass(slots=True)
class Unwritten:
    """What turned out to be no row only when all of it was read."""

    rows: dict[int, str] = field(default_factory=dict)
    """Rows of the catalog, and the reasons."""
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """Better and worse attempts that say the same."""


def write_rows(
    catalog: Catalog,
    draft: Path,
    *,
    to: To,
    form: Form,
    sides: Sequence[str],
    dedupe: bool,
    watch: Watch,
) -> dict[str, int]:
    """Write `train.jsonl` and its like, and return how many rows went into each."""
    written = dict.fromkeys(sides, 0)
    unwritten = Unwritten()
    if to == "dpo":
        made = _paired(catalog, form, unwritten)
        total = catalog.sql("SELECT count(*) FROM pairs")[0][0]
    else:
        made = _single(catalog, to, form, dedupe, unwritten)
        total = catalog.kept
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {
            side: stack.enter_context((draft / f"{side}.jsonl").open("wb", buffering=1 << 20))
            for side in sides
        }
        for number, (side, line) in enumerate(made):
            files[side].write(line)
            written[side] += 1
            if number % _EVERY == 0:
                watch("writing rows", number, total)
    _leave_out(catalog, unwritten, to)
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
        fields = from_json(line.strip())
    except ValueError:
        return None
    return fields.get("episode_id") if isinstance(fields, dict) else None


def _single(
    catalog: Catalog, to: To, form: Form, dedupe: bool, unwritten: Unwritten
) -> Iterator[tuple[str, bytes]]:
    make = _MAKERS.get(to)
    seen: set[int] = set()
    for row, mark, line in catalog.lines(
        f"SELECT rowid, CASE WHEN side = '{TEST}' THEN 2 ELSE 1 END FROM episodes "
        "WHERE reason IS NULL"
    ):
        side = TEST if mark == 2 else TRAIN
        if make is None and line.endswith(b"}\n") and has_canonical_prefix(line):
            yield side, line
        elif (episode := _episode(line, row, to, unwritten)) is not None:
            made = make(episode, form) if make is not None else None
            if made is not None and to == "sft" and dedupe and _is_copy(made, seen):
                unwritten.rows[row] = DUPLICATE
            else:
                yield side, line.strip() + b"\n" if made is None else _line(made)


def _is_copy(row: JsonObject, seen: set[int]) -> bool:
    """Whether a row says what one before it said: what told their episodes apart was dropped."""
    said = row.get("messages") or [*row["prompt"], *row["completion"]]
    name = digest_64(to_json([wording(said), row["tools"]], inf_nan_mode="null").decode())
    if name in seen:
        return True
    seen.add(name)
    return False


def _paired(catalog: Catalog, form: Form, unwritten: Unwritten) -> Iterator[tuple[str, bytes]]:
    @lru_cache(_REMEMBERED)
    def read(row: int) -> Episode | None:
        return _episode(catalog.line(row), row, "dpo", unwritten)

    for better, worse, side in pairs(catalog):
        chosen, rejected = read(better), read(worse)
        if chosen is None or rejected is None:
            continue
        made = dpo_row(chosen, rejected, form)
        if wording(made["chosen"]) == wording(made["rejected"]):
            unwritten.pairs.append((better, worse))
        else:
            yield side or TRAIN, _line(made)


def _episode(line: bytes, row: int, to: To, unwritten: Unwritten) -> Episode | None:
    try:
        episode = Episode.from_line(line.strip())
        if to in ("sft", "dpo"):
            check_calls(episode.messages)
        return episode
    except ValidationError:
        unwritten.rows[row] = UNREADABLE
    except MalformedCall:
        unwritten.rows[row] = MALFORMED
    return None


def _leave_out(catalog: Catalog, unwritten: Unwritten, to: To) -> None:
    if not unwritten.rows and not unwritten.pairs:
        return
    rows = sorted(unwritten.rows.items())
    catalog.table("unwritten", {"row": "BIGINT", "why": "VARCHAR"}, rows)
    for why in sorted(set(unwritten.rows.values())):
        catalog.leave_out(why, "rowid IN (SELECT row FROM unwritten WHERE why = ?)", why)
    if to == "dpo":
        catalog.table("equal", {"chosen": "BIGINT", "rejected": "BIGINT"}, unwritten.pairs)
        catalog.leave_out(
            "equal sides",
            f"rowid IN (SELECT unnest([chosen, rejected]) FROM equal) AND {_IN_NO_PAIR}",
            detail="better and worse attempts say the same",
        )
        catalog.leave_out("in no pair", _IN_NO_PAIR, detail="the other side cannot be used")


_IN_NO_PAIR = """rowid NOT IN (
    SELECT unnest([chosen, rejected]) FROM (FROM pairs EXCEPT FROM equal)
    WHERE chosen NOT IN (SELECT row FROM unwritten) AND rejected NOT IN (SELECT row FROM unwritten)
)"""


def _line(row: JsonObject) -> bytes:
    # A reward that is not a number is none; and "NaN" is no JSON.
    return to_json(row, inf_nan_mode="null") + b"\n"
