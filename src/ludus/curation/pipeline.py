"""The stage: episodes of some runs -> rows worth training on, and an account of all the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from ludus.curation import dedupe, filters, pairs, split
from ludus.curation.catalog import UNREADABLE, Catalog, open_catalog
from ludus.curation.config import CurateConfig, CurateReport
from ludus.curation.dataset_card import DatasetOrigin, previous_digest, write_card
from ludus.curation.file_formats import convert_files
from ludus.curation.lint.lint_rows import TrainingRow, parse_row, read_json_lines
from ludus.curation.output_dir import open_output_dir
from ludus.curation.token_lengths import measure_rows
from ludus.curation.writers import CurateProgress, write_rows
from ludus.curation.writers import write_left_out as explain_all
from ludus.errors import ConfigError, RunError
from ludus.policy.tokenizer import load_tokenizer
from ludus.policy.vision.model_families import load_vision_processor

_MAX_UNREADABLE_SHOWN = 20
_HINT_BY_REASON = {
    UNREADABLE: "`ludus import` reads files of other tools; episodes of a later version need a "
    "later Ludus.",
    "unscored": "Keep them with --unscored.",
    "alone": "A pair needs two attempts at a task: `ludus collect --group-size`.",
    "equal rewards": "A pair needs two attempts with different rewards.",
}
"""What to do where most episodes were left out for this reason."""
_ONLY_DUPLICATES_HINT = (
    "Attempts at the same task say the same, word for word, and a pair needs two that differ: "
    "collect with a higher --temperature or a larger --group-size."
)
_PROGRESS_INTERVAL_ROWS = 100
_READ_BLOCK_BYTES = 1 << 20


def curate(
    runs: str | Path | Sequence[str | Path],
    out: str | Path,
    config: CurateConfig | None = None,
    *,
    overwrite: bool = False,
    explain: bool = False,
    location: str | None = None,
    command: str | None = None,
    on_progress: CurateProgress = lambda what, done, total: None,
) -> CurateReport:
    """Curate the episodes of `runs` into the folder `out`, which is there at the end, or not.

    A data set that is there already is written over where `overwrite` says so, and where the same
    options made it from the same runs (or some of them) and nobody has changed it since.
    The card says that the rows can be loaded from `location` (`out`, unless they go to the Hub),
    and that `command` made them.
    """
    sources = [runs] if isinstance(runs, str | Path) else runs
    folders, out = [Path(run).expanduser() for run in sources], Path(out).expanduser()
    config = config or CurateConfig()
    files = episode_files(folders)
    sides = [split.TRAIN] if config.test is None else [split.TRAIN, split.TEST]
    tokenizer = load_tokenizer(config.student) if config.student is not None else None
    names = [str(run) for run in folders]
    again = overwrite or _is_rerun(out, config, names, sides)
    with open_output_dir(out, overwrite=again) as draft:
        work = draft / "work"
        work.mkdir()
        on_progress("reading", 0, None)
        with open_catalog(
            files, work, where=config.selection.where, contents=config.needs_contents
        ) as catalog:
            families = _filter_episodes(catalog, config, on_progress)
            _check_any_kept(catalog)
            rows = write_rows(
                catalog,
                draft,
                to=config.to,
                config=config.form,
                sides=sides,
                dedupe=config.dedupe,
                on_progress=on_progress,
            )
            _check_any_kept(catalog)
            if explain:
                explain_all(catalog, draft / "left_out.jsonl")
            report = _build_report(catalog, rows, families)
        if tokenizer is not None and config.student is not None:
            found = _iter_rows(draft / "train.jsonl", rows[split.TRAIN], on_progress)
            eyes = partial(load_vision_processor, config.student, tokenizer)
            lengths = measure_rows(found, tokenizer, config.student, load_processor=eyes)
            report = replace(report, lengths=lengths)
        digest = _hash_files(draft / f"{side}.jsonl" for side in sides)
        on_progress("converting", 0, None)
        convert_files(draft, sides, config.format, config.row_kind, work)
        origin = DatasetOrigin(names, digest, location or str(out), command)
        write_card(draft, report, config, origin)
    return report


def _is_rerun(out: Path, config: CurateConfig, runs: Sequence[str], sides: Sequence[str]) -> bool:
    """Whether `out` holds what the same command wrote there before, as it wrote it."""
    before = previous_digest(out, config, runs)
    if before is None or config.format != "jsonl":
        return before is not None
    files = [out / f"{side}.jsonl" for side in sides]
    return all(file.is_file() for file in files) and _hash_files(files) == before


def _iter_rows(file: Path, total: int, on_progress: CurateProgress) -> Iterator[TrainingRow]:
    for number, (place, columns) in enumerate(read_json_lines(file)):
        if number % _PROGRESS_INTERVAL_ROWS == 0:
            on_progress("measuring rows", number, total)
        yield parse_row(columns, place)


def _hash_files(files: Iterable[Path]) -> str:
    """A hash of the rows; of the quick kind, because there may be gigabytes of them."""
    import xxhash

    made, block = xxhash.xxh3_64(), bytearray(_READ_BLOCK_BYTES)
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


def _filter_episodes(catalog: Catalog, config: CurateConfig, on_progress: CurateProgress) -> int:
    selection = config.selection
    on_progress("choosing", 0, None)
    filters.exclude_faults(catalog, unscored=selection.unscored)
    if config.is_for_training:
        filters.exclude_untrainable(catalog)
    filters.apply_filters(catalog, selection)
    # Attempts at different tasks may say the same and still make pairs that differ, so copies of
    # pairs are looked for when there are some.
    if config.dedupe or config.to == "dpo":
        filters.exclude_duplicates(catalog, within_tasks=config.to == "dpo")
    if config.near_prompts is not None:
        on_progress("comparing prompts", 0, None)
        dedupe.exclude_near_prompts(catalog, config.near_prompts)
    if config.near_completions is not None:
        on_progress("comparing completions", 0, None)
        dedupe.exclude_near_completions(
            catalog, config.near_completions, across_tasks=config.across_tasks
        )
    if selection.best_of_group:
        filters.keep_best_of_group(catalog)
    if config.held_out:
        on_progress("comparing with the held-out set", 0, None)
        split.exclude_held_out(catalog, config.held_out, config.likeness)
    if config.to == "dpo":
        pairs.build_pairs(catalog, pairing=config.pairing, min_margin=config.min_margin)
        if config.dedupe:
            pairs.exclude_duplicate_pairs(catalog)
    if config.to == "nemo-gym-input" and not selection.best_of_group:
        filters.keep_best_of_group(catalog)
    if config.test is None or not catalog.kept:
        return 0
    on_progress("splitting", 0, None)
    return split.split_by_task(
        catalog, test=config.test, similarity=config.likeness, seed=config.seed
    )


def _check_any_kept(catalog: Catalog) -> None:
    if catalog.kept:
        return
    if not catalog.total:
        raise RunError("There are no episodes in these runs yet.")
    left_out = catalog.excluded_counts
    told = ", ".join(f"{reason} {count:,}" for reason, count in left_out.items())
    hint = _HINT_BY_REASON.get(max(left_out, key=lambda reason: left_out[reason]), "Ask for less.")
    if left_out.get(filters.DUPLICATE, 0) >= left_out.get("alone", inf):
        hint = _ONLY_DUPLICATES_HINT
    raise RunError(f"Nothing is left of {catalog.total:,} episodes: {told}. {hint}")


def _build_report(catalog: Catalog, rows: dict[str, int], families: int) -> CurateReport:
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
        f"SELECT rowid FROM episodes WHERE reason = '{UNREADABLE}' ORDER BY rowid LIMIT {_MAX_UNREADABLE_SHOWN}"
    )
    return CurateReport(
        episodes=catalog.total,
        kept=catalog.kept,
        steps=tuple(catalog.steps),
        left_out=catalog.excluded_counts,
        rows=rows,
        tasks={side: dict(tasks).get(side, 0) for side in rows},
        families=families,
        unreadable=tuple("{}:{}".format(*catalog.location(row)) for (row,) in bad),
        rewards=dict(zip(("min", "mean", "max"), rewards, strict=True))
        if rewards[0] is not None
        else {},
    )
