"""The stage: episodes of some runs -> rows worth training on, and an account of all the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from ludus.curate import dedupe, pairs, select, split
from ludus.curate.card import Origin, made_alike, write_card
from ludus.curate.catalog import UNREADABLE, Catalog, catalog_of
from ludus.curate.curation import Curation, Report
from ludus.curate.formats import convert
from ludus.curate.lengths import measure
from ludus.curate.lint.rows import Row, lines_of, row_of
from ludus.curate.target import written_into
from ludus.curate.writing import Watch, write_rows
from ludus.curate.writing import explain as explain_all
from ludus.errors import ConfigError, RunError
from ludus.policy.eyes.families import load_vision_processor
from ludus.policy.tokenizer import load_tokenizer

_SHOWN = 20
_HINTS = {
    UNREADABLE: "`ludus import` reads files of other tools; episodes of a later version need a "
    "later Ludus.",
    "unscored": "Keep them with --unscored.",
    "alone": "A pair needs two attempts at a task: `ludus collect --group-size`.",
    "equal rewards": "A pair needs two attempts with different rewards.",
}
"""What to do where most episodes were left out for this reason."""
_SAME_WORDS = (
    "Attempts at the same task say the same, word for word, and a pair needs two that differ: "
    "collect with a higher --temperature or a larger --group-size."
)
_EVERY = 100
_BLOCK = 1 << 20


def curate(
    runs: str | Path | Sequence[str | Path],
    out: str | Path,
    curation: Curation | None = None,
    *,
    overwrite: bool = False,
    explain: bool = False,
    location: str | None = None,
    command: str | None = None,
    watch: Watch = lambda what, done, total: None,
) -> Report:
    """Curate the episodes of `runs` into the folder `out`, which is there at the end, or not.

    A data set that is there already is written over where `overwrite` says so, and where the same
    options made it from the same runs (or some of them) and nobody has changed it since.
    The card says that the rows can be loaded from `location` (`out`, unless they go to the Hub),
    and that `command` made them.
    """
    sources = [runs] if isinstance(runs, str | Path) else runs
    folders, out = [Path(run).expanduser() for run in sources], Path(out).expanduser()
    curation = curation or Curation()
    files = episode_files(folders)
    sides = [split.TRAIN] if curation.test is None else [split.TRAIN, split.TEST]
    tokenizer = load_tokenizer(curation.student) if curation.student is not None else None
    names = [str(run) for run in folders]
    again = overwrite or _is_made_again(out, curation, names, sides)
    with written_into(out, overwrite=again) as draft:
        work = draft / "work"
        work.mkdir()
        watch("reading", 0, None)
        with catalog_of(
            files, work, where=curation.selection.where, contents=curation.reads_contents
        ) as catalog:
            families = _choose(catalog, curation, watch)
            _refuse_nothing(catalog)
            rows = write_rows(
                catalog,
                draft,
                to=curation.to,
                form=curation.form,
                sides=sides,
                dedupe=curation.dedupe,
                watch=watch,
            )
            _refuse_nothing(catalog)
            if explain:
                explain_all(catalog, draft / "left_out.jsonl")
            report = _report(catalog, rows, families)
        if tokenizer is not None and curation.student is not None:
            found = _rows(draft / "train.jsonl", rows[split.TRAIN], watch)
            eyes = partial(load_vision_processor, curation.student, tokenizer)
            lengths = measure(found, tokenizer, curation.student, eyes=eyes)
            report = replace(report, lengths=lengths)
        digest = _digest(draft / f"{side}.jsonl" for side in sides)
        watch("converting", 0, None)
        convert(draft, sides, curation.format, curation.kind, work)
        origin = Origin(names, digest, location or str(out), command)
        write_card(draft, report, curation, origin)
    return report


def _is_made_again(
    out: Path, curation: Curation, runs: Sequence[str], sides: Sequence[str]
) -> bool:
    """Whether `out` holds what the same command wrote there before, as it wrote it."""
    before = made_alike(out, curation, runs)
    if before is None or curation.format != "jsonl":
        return before is not None
    files = [out / f"{side}.jsonl" for side in sides]
    return all(file.is_file() for file in files) and _digest(files) == before


def _rows(file: Path, total: int, watch: Watch) -> Iterator[Row]:
    for number, (place, columns) in enumerate(lines_of(file)):
        if number % _EVERY == 0:
            watch("measuring rows", number, total)
        yield row_of(columns, place)


def _digest(files: Iterable[Path]) -> str:
    """A hash of the rows; of the quick kind, because there may be gigabytes of them."""
    import xxhash

    made, block = xxhash.xxh3_64(), bytearray(_BLOCK)
    for file in files:
        made.update(file.name.encode())
        with file.open("rb", buffering=0) as source:
            while size := source.readinto(block):
                made.update(memoryview(block)[:size])
    return made.hexdigest()


def episode_files(runs: Sequence[Path]) -> list[Path]:
    """The files of the runs: folders of runs, or files of episodes themselves."""
    files = [run / "episodes.jsonl" if run.is_dir() else run for run in runs]
    for run, file in zip(runs, files, strict=True):
        if not file.is_file():
            raise RunError(
                f"There are no episodes in {run}: it has no episodes.jsonl. "
                "`ludus collect` makes runs, `ludus import` makes them from other files."
                if run.is_dir()
                else f"There is no run {run}. `ludus runs` lists those below runs/."
            )
    seen: set[Path] = set()
    for run, file in zip(runs, files, strict=True):
        if file.resolve() in seen:
            raise ConfigError(f"{run} is named twice. Name each run once.")
        seen.add(file.resolve())
    return files


def _choose(catalog: Catalog, curation: Curation, watch: Watch) -> int:
    selection = curation.selection
    watch("choosing", 0, None)
    select.leave_out_faults(catalog, unscored=selection.unscored)
    if curation.trains:
        select.leave_out_untrainable(catalog)
    select.select(catalog, selection)
    # Attempts at different tasks may say the same and still make pairs that differ, so copies of
    # pairs are looked for when there are some.
    if curation.dedupe or curation.to == "dpo":
        select.leave_out_copies(catalog, within_tasks=curation.to == "dpo")
    if curation.near_prompts is not None:
        watch("comparing prompts", 0, None)
        dedupe.leave_out_near_prompts(catalog, curation.near_prompts)
    if curation.near_completions is not None:
        watch("comparing completions", 0, None)
        dedupe.leave_out_near_completions(
            catalog, curation.near_completions, across_tasks=curation.across_tasks
        )
    if selection.best_of_group:
        select.best_of_group(catalog)
    if curation.held_out:
        watch("comparing with the held-out set", 0, None)
        split.leave_out_held_out(catalog, curation.held_out, curation.likeness)
    if curation.to == "dpo":
        pairs.pair_up(catalog, pairing=curation.pairing, min_margin=curation.min_margin)
        if curation.dedupe:
            pairs.leave_out_equal_pairs(catalog)
    if curation.to == "nemo-gym-input" and not selection.best_of_group:
        select.best_of_group(catalog)
    if curation.test is None or not catalog.kept:
        return 0
    watch("splitting", 0, None)
    return split.split(catalog, test=curation.test, likeness=curation.likeness, seed=curation.seed)


def _refuse_nothing(catalog: Catalog) -> None:
    if catalog.kept:
        return
    if not catalog.total:
        raise RunError("There are no episodes in these runs yet.")
    left_out = catalog.left_out
    told = ", ".join(f"{reason} {count:,}" for reason, count in left_out.items())
    hint = _HINTS.get(max(left_out, key=lambda reason: left_out[reason]), "Ask for less.")
    if left_out.get(select.DUPLICATE, 0) >= left_out.get("alone", inf):
        hint = _SAME_WORDS
    raise RunError(f"Nothing is left of {catalog.total:,} episodes: {told}. {hint}")


def _report(catalog: Catalog, rows: dict[str, int], families: int) -> Report:
    tasks = catalog.sql(
        "SELECT coalesce(side, 'train'), count(DISTINCT task) FROM episodes "
        "WHERE reason IS NULL GROUP BY 1"
    )
    rewards: tuple[Any, ...] = catalog.sql(
        # Scaled, so that the sum of huge rewards stays a number.
        "SELECT min(reward), avg(reward / pow(2, 64)) * pow(2, 64), max(reward) FROM episodes "
        "WHERE reason IS NULL"
    )[0]
    bad = catalog.sql(
        f"SELECT rowid FROM episodes WHERE reason = '{UNREADABLE}' ORDER BY rowid LIMIT {_SHOWN}"
    )
    return Report(
        episodes=catalog.total,
        kept=catalog.kept,
        steps=tuple(catalog.steps),
        left_out=catalog.left_out,
        rows=rows,
        tasks={side: dict(tasks).get(side, 0) for side in rows},
        families=families,
        unreadable=tuple("{}:{}".format(*catalog.place(row)) for (row,) in bad),
        rewards=dict(zip(("min", "mean", "max"), rewards, strict=True))
        if rewards[0] is not None
        else {},
    )
