"""Write the kept episodes as rows, in their order in the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from ludus.curation.catalog import UNREADABLE, Catalog
from ludus.curation.dedupe import DUPLICATE
from ludus.curation.filters import MALFORMED_CALL
from ludus.curation.formats import nemo_gym, openenv
from ludus.curation.pairs import iter_pairs
from ludus.curation.split import TEST, TRAIN
from ludus.curation.training_rows import (
    MalformedCallError,
    RowConfig,
    check_calls,
    dpo_row,
    sft_rows,
    tutor_pair_rows,
)
from ludus.curation.tutor_labels import count_agreement
from ludus.data.episode import Episode
from ludus.data.episode_reader import has_canonical_head
from ludus.data.files import stable_hash
from ludus.data.messages import without_call_ids
from ludus.data.tool_schema import JsonObject

OutputKind = Literal["sft", "dpo", "episodes", "openenv", "nemo-gym", "nemo-gym-input"]
CurateProgress = Callable[[str, int, int | None], None]
"""Called with the phase, how much of it is done, and the total if it is known."""
_ROW_BUILDERS: dict[str, Callable[[Episode, RowConfig], Iterable[JsonObject]]] = {
    "sft": sft_rows,
    "dpo": tutor_pair_rows,
    "openenv": lambda episode, config: [openenv.build_record(episode)],
}
_GYM_LINES = {
    "nemo-gym": nemo_gym.build_rollout,
    "nemo-gym-input": nemo_gym.build_input,
}
NO_LOSS = "no loss"
_PROGRESS_INTERVAL_ROWS = 1_000
_EPISODE_CACHE_SIZE = 256
"""Parsed episodes kept for the next pairs: a good attempt is part of many pairs."""
_NOT_IN_ANY_PAIR = """rowid NOT IN (
    SELECT unnest([chosen, rejected]) FROM (FROM pairs EXCEPT FROM same)
    WHERE chosen NOT IN (SELECT row FROM unwritten) AND rejected NOT IN (SELECT row FROM unwritten)
) AND NOT tutored"""


@dataclass(slots=True)
class WrittenRows:
    """What was written, and how far students and tutors agreed in it."""

    by_split: dict[str, int]
    masked: int = 0
    """Rows in which a reply has a weight of 0."""
    labelled_turns: int = 0
    agreed_turns: int = 0

    @property
    def agreement(self) -> float | None:
        """The share of the labelled turns in which student and tutor agreed."""
        return self.agreed_turns / self.labelled_turns if self.labelled_turns else None

    def add(self, episode: Episode, rows: Sequence[JsonObject]) -> None:
        """Count the rows of an episode with random turns or with a tutor."""
        if episode.tutor_replies:
            agreed, labelled = count_agreement(episode)
            self.agreed_turns += agreed
            self.labelled_turns += labelled
        if episode.tutor_replies or episode.explored_turns:
            messages = (row.get("messages", ()) for row in rows)
            self.masked += sum(any("weight" in each for each in some) for some in messages)


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
            catalog.create_table("same", {"chosen": "BIGINT", "rejected": "BIGINT"}, self.pairs)
            catalog.exclude(
                "equal sides",
                f"rowid IN (SELECT unnest([chosen, rejected]) FROM same) AND {_NOT_IN_ANY_PAIR}",
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
) -> WrittenRows:
    """Write one JSONL file per split, and count what was written."""
    written = WrittenRows(dict.fromkeys(splits, 0))
    unwritten = UnwrittenRows()
    rows = _iter_rows(catalog, to, config, dedupe, written, unwritten)
    total = catalog.kept
    if to == "dpo":
        rows = chain(_iter_pair_rows(catalog, config, unwritten), rows)
        total = catalog.sql("SELECT count(*) FROM pairs")[0][0] + catalog.tutored
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {
            split: stack.enter_context((draft / f"{split}.jsonl").open("wb", buffering=1 << 20))
            for split in splits
        }
        for number, (split, line) in enumerate(rows):
            files[split].write(line)
            written.by_split[split] += 1
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
    catalog: Catalog,
    to: OutputKind,
    config: RowConfig,
    dedupe: bool,
    written: WrittenRows,
    unwritten: UnwrittenRows,
) -> Iterator[tuple[str, bytes]]:
    """Yield the split and the line of each row of the kept episodes; of pairs, those of tutors."""
    build_rows = _ROW_BUILDERS.get(to)
    numbers = nemo_gym.RolloutNumbers()
    if build_line := _GYM_LINES.get(to):

        def build_rows(episode: Episode, config: RowConfig) -> list[JsonObject]:
            return [build_line(episode, numbers)]

    seen: set[int] = set()
    for row, mark, line in catalog.read_lines(
        f"SELECT rowid, CASE WHEN split = '{TEST}' THEN 2 ELSE 1 END FROM episodes "
        f"WHERE reason IS NULL {'AND tutored' if to == 'dpo' else ''}"
    ):
        split = TEST if mark == 2 else TRAIN
        if build_rows is None and line.endswith(b"}\n") and has_canonical_head(line):
            yield split, line
            continue
        episode = _parse_episode(line, row, to, unwritten)
        if episode is None:
            continue
        if build_rows is None:
            yield split, line.strip() + b"\n"
            continue
        built = list(build_rows(episode, config))
        written.add(episode, built)
        new = built
        if to in ("sft", "dpo") and dedupe:
            # Episodes can differ in what is not part of the rows.
            digests = {_hash_contents(each): each for each in built}
            new = [each for digest, each in digests.items() if digest not in seen]
            seen |= digests.keys()
        if not new:
            unwritten.rows[row] = DUPLICATE if built else NO_LOSS
        for each in new:
            yield split, _dump_line(each)


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


def _hash_contents(row: JsonObject) -> int:
    """A hash of what is trained on in a row."""
    columns = ("messages", "prompt", "completion", "chosen", "rejected")
    messages = [without_call_ids(row[name]) for name in columns if name in row]
    return stable_hash(to_json([messages, row["tools"]], inf_nan_mode="null").decode())


def _parse_episode(
    line: bytes, row: int, to: OutputKind, unwritten: UnwrittenRows
) -> Episode | None:
    try:
        episode = Episode.from_line(line.strip())
        if to in ("sft", "dpo") and not episode.tutor_replies:
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
