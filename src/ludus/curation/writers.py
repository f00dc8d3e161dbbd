"""Write the kept episodes as rows, in their order in the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from ludus.curation.catalog import UNREADABLE, Catalog
from ludus.curation.config import CurateConfig
from ludus.curation.filters import DUPLICATE, MALFORMED_CALL
from ludus.curation.formats import nemo_gym, openenv
from ludus.curation.labelled_turns import count_agreement, has_malformed_call
from ludus.curation.pairs import iter_pairs
from ludus.curation.row_builders import MalformedCallError, dpo_row, sft_rows
from ludus.curation.similarity import TEST, TRAIN
from ludus.data.episode import Episode
from ludus.data.episode_reader import has_canonical_head
from ludus.data.files import stable_hash
from ludus.data.messages import without_call_ids
from ludus.data.tool_schema import JsonObject

CurateProgress = Callable[[str, int, int | None], None]
"""Called with the phase, the amount done, and the total if known."""
_PROGRESS_INTERVAL_ROWS = 1_000
_EPISODE_CACHE_SIZE = 256
"""Parsed episodes kept for the next pairs: a good attempt is part of many pairs."""
_NOT_IN_ANY_PAIR = """rowid NOT IN (
    SELECT unnest([chosen, rejected]) FROM (FROM pairs EXCEPT FROM same)
    WHERE chosen NOT IN (SELECT row FROM unwritten) AND rejected NOT IN (SELECT row FROM unwritten)
)"""


@dataclass(slots=True)
class WrittenRows:
    """What was written, and what could not be."""

    by_split: dict[str, int]
    masked: int = 0
    """Rows in which a reply has a weight of 0."""
    labelled_turns: int = 0
    agreed_turns: int = 0
    unwritten: dict[int, str] = field(default_factory=dict)
    """Reason by row of the catalog: parsing these episodes showed that they are unusable."""
    equal_pairs: list[tuple[int, int]] = field(default_factory=list)
    """Rows of better and worse attempts with the same content."""

    @property
    def agreement(self) -> float | None:
        """The share of the labelled turns in which student and tutor agreed."""
        return self.agreed_turns / self.labelled_turns if self.labelled_turns else None


def write_rows(
    catalog: Catalog,
    draft: Path,
    config: CurateConfig,
    *,
    splits: Sequence[str],
    progress: CurateProgress,
) -> WrittenRows:
    """Write one JSONL file per split, and count what was written."""
    written = WrittenRows(dict.fromkeys(splits, 0))
    if config.to == "dpo":
        rows = _iter_pair_rows(catalog, config, written)
        total = catalog.sql("SELECT count(*) FROM pairs")[0][0]
    else:
        rows, total = _iter_rows(catalog, config, written), catalog.kept
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
    if not written.unwritten and not written.equal_pairs:
        return written
    # The catalog lists what was not written as kept.
    unwritten = sorted(written.unwritten.items())
    catalog.create_table("unwritten", {"row": "BIGINT", "reason": "VARCHAR"}, unwritten)
    for reason in sorted(set(written.unwritten.values())):
        condition = "rowid IN (SELECT row FROM unwritten WHERE unwritten.reason = ?)"
        catalog.exclude(reason, condition, reason)
    if config.to == "dpo":
        columns = {"chosen": "BIGINT", "rejected": "BIGINT"}
        catalog.create_table("same", columns, written.equal_pairs)
        catalog.exclude(
            "equal sides",
            f"rowid IN (SELECT unnest([chosen, rejected]) FROM same) AND {_NOT_IN_ANY_PAIR}",
            detail="the better and the worse attempt are the same",
        )
        catalog.exclude("in no pair", _NOT_IN_ANY_PAIR, detail="the other attempt is unusable")
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


def _row_builder(config: CurateConfig) -> Callable[[Episode], Iterable[JsonObject]] | None:
    """Return the function from an episode to its rows; None if episodes stay as they are."""
    numbers = nemo_gym.RolloutNumbers()
    match config.to:
        case "sft":
            return partial(sft_rows, reasoning=config.reasoning)
        case "openenv":
            return lambda episode: [openenv.build_openenv_record(episode)]
        case "nemo-gym":
            return lambda episode: [nemo_gym.build_gym_rollout(episode, numbers)]
        case "nemo-gym-input":
            return lambda episode: [nemo_gym.build_gym_input(episode, numbers)]
    return None


def _iter_rows(
    catalog: Catalog, config: CurateConfig, written: WrittenRows
) -> Iterator[tuple[str, bytes]]:
    """Yield the split and the line of each row of the kept episodes."""
    build_rows = _row_builder(config)
    seen: set[int] = set()
    for row, mark, line in catalog.read_lines(
        f"SELECT rowid, CASE WHEN split = '{TEST}' THEN 2 ELSE 1 END FROM episodes "
        "WHERE reason IS NULL"
    ):
        split = TEST if mark == 2 else TRAIN
        if build_rows is None and line.endswith(b"}\n") and has_canonical_head(line):
            yield split, line
            continue
        try:
            episode = Episode.from_line(line.strip())
            rows = None if build_rows is None else list(build_rows(episode))
        except ValidationError:
            written.unwritten[row] = UNREADABLE
            continue
        except MalformedCallError:
            written.unwritten[row] = MALFORMED_CALL
            continue
        if rows is None:
            yield split, line.strip() + b"\n"
            continue
        if episode.tutor_replies:
            agreed, labelled = count_agreement(episode)
            written.agreed_turns += agreed
            written.labelled_turns += labelled
        if episode.tutor_replies or episode.explored_turns:
            conversations = (each.get("messages", ()) for each in rows)
            written.masked += sum(any("weight" in each for each in some) for some in conversations)
        new = rows
        if config.to == "sft" and config.dedupe:
            # Episodes can differ in what is not part of the rows.
            new = []
            for each in rows:
                messages = without_call_ids(each["messages"])
                content = to_json([messages, each["tools"]], inf_nan_mode="null")
                if (digest := stable_hash(content.decode())) not in seen:
                    seen.add(digest)
                    new.append(each)
        if not new:
            written.unwritten[row] = DUPLICATE if rows else "no loss"
        for each in new:
            yield split, _dump_line(each)


def _iter_pair_rows(
    catalog: Catalog, config: CurateConfig, written: WrittenRows
) -> Iterator[tuple[str, bytes]]:
    """Yield the split and the line of each pair."""

    @lru_cache(_EPISODE_CACHE_SIZE)
    def read_episode(row: int) -> Episode | None:
        try:
            episode = Episode.from_line(catalog.read_line(row))
        except ValidationError:
            written.unwritten[row] = UNREADABLE
            return None
        if any(map(has_malformed_call, episode.messages)):
            written.unwritten[row] = MALFORMED_CALL
            return None
        return episode

    for better, worse, split in iter_pairs(catalog):
        chosen, rejected = read_episode(better), read_episode(worse)
        if chosen is None or rejected is None:
            continue
        row = dpo_row(chosen, rejected, reasoning=config.reasoning)
        if without_call_ids(row["chosen"]) == without_call_ids(row["rejected"]):
            written.equal_pairs.append((better, worse))
        else:
            yield split or TRAIN, _dump_line(row)


def _dump_line(row: JsonObject) -> bytes:
    # A reward of NaN is written as null, because JSON has no NaN.
    return to_json(row, inf_nan_mode="null") + b"\n"
