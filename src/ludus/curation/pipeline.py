"""The `curate` stage: filter the episodes of some runs and write them as training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

from ludus.curation import dedupe, filters, pairs, split
from ludus.curation.catalog import UNREADABLE, Catalog
from ludus.curation.config import CurateConfig
from ludus.curation.curation_report import CurateReport, build_report
from ludus.curation.dataset_card import DatasetOrigin, write_card
from ludus.curation.dedupe import exclude_held_out_tasks
from ludus.curation.file_formats import convert_files
from ludus.curation.load_episodes import find_episode_files
from ludus.curation.output_dir import hash_output_files, is_rerun, open_output_dir
from ludus.curation.token_lengths import measure_file
from ludus.curation.writers import CurateProgress, write_left_out, write_rows
from ludus.data.files import lock_dir
from ludus.errors import RunError
from ludus.policy.load import load_tokenizer
from ludus.policy.vision.processor import load_vision_processor

_HINT_BY_REASON = {
    UNREADABLE: "`ludus import` reads the files of other tools; episodes of a newer version need a "
    "newer Ludus.",
    "unscored": "Keep them with `keep_unscored`.",
    "alone": "A pair needs two attempts at a task: `ludus collect --group-size`.",
    "equal rewards": "A pair needs two attempts with different rewards.",
}
"""What to do if most episodes were excluded for this reason."""
_ONLY_DUPLICATES_HINT = (
    "All attempts at a task are the same, but a pair needs two that differ: collect with a higher "
    "--temperature or a larger --group-size."
)


def curate(
    runs: str | Path | Sequence[str | Path],
    out: str | Path,
    config: CurateConfig | None = None,
    *,
    overwrite: bool = False,
    explain: bool = False,
    location: str | None = None,
    command: str | None = None,
    progress: CurateProgress | None = None,
) -> CurateReport:
    """Curate the episodes of `runs` into the folder `out`, which is written atomically.

    An existing data set is replaced if `overwrite` is set, or if it was written with the same
    configuration from the same runs (or some of them) and has not been changed since.
    `explain` adds `left_out.jsonl`, with the reason for every excluded episode. The data set card
    shows `command`, and `location` as the place to load the rows from (default: `out`).
    """
    sources = [runs] if isinstance(runs, str | Path) else runs
    folders, out = [Path(run).expanduser() for run in sources], Path(out).expanduser()
    config = config or CurateConfig()
    progress = progress or (lambda phase, done, total: None)
    files = find_episode_files(folders)
    splits = [split.TRAIN] if config.test_size is None else [split.TRAIN, split.TEST]
    tokenizer = load_tokenizer(config.student) if config.student is not None else None
    names = [str(run) for run in folders]
    with (
        lock_dir(out),
        open_output_dir(out, overwrite=overwrite or is_rerun(out, config, names, splits)) as draft,
    ):
        work = draft / "work"
        work.mkdir()
        progress("reading", 0, None)
        with Catalog.open(
            files,
            work,
            where=config.where,
            contents=config.needs_contents,
            labels=config.is_for_training,
        ) as catalog:
            tasks = _filter_episodes(catalog, config, progress)
            _check_any_kept(catalog)
            written = write_rows(
                catalog,
                draft,
                to=config.to,
                config=config,
                splits=splits,
                dedupe=bool(config.dedupe),
                progress=progress,
            )
            _check_any_kept(catalog)
            if explain:
                write_left_out(catalog, draft / "left_out.jsonl")
            report = build_report(catalog, written, tasks)
        if tokenizer is not None and config.student is not None:
            lengths = measure_file(
                draft / "train.jsonl",
                tokenizer,
                config.student,
                load_processor=partial(load_vision_processor, config.student),
                progress=lambda done: progress(
                    "measuring rows", done, written.by_split[split.TRAIN]
                ),
            )
            report = replace(report, lengths=lengths)
        digest = hash_output_files(draft / f"{name}.jsonl" for name in splits)
        progress("converting", 0, None)
        convert_files(draft, splits, config.format, config.row_kind, work)
        origin = DatasetOrigin(names, digest, location or str(out), command)
        write_card(draft, report, config, origin)
    return report


def _filter_episodes(
    catalog: Catalog, config: CurateConfig, progress: CurateProgress
) -> split.SplitByTask:
    """Exclude episodes, build pairs and assign splits."""
    progress("filtering", 0, None)
    filters.exclude_faults(catalog, keep_unscored=config.keep_unscored)
    if config.is_for_training:
        filters.exclude_untrainable(catalog)
    filters.apply_filters(catalog, config)
    # For pairs, only within tasks: the same attempt at two tasks can be part of different pairs.
    # Duplicate pairs are excluded once there are pairs.
    if config.dedupe or config.to == "dpo":
        dedupe.exclude_duplicates(catalog, within_tasks=config.to == "dpo")
    if config.max_prompt_similarity is not None:
        progress("comparing prompts", 0, None)
        dedupe.exclude_near_prompts(catalog, config.max_prompt_similarity)
    if config.max_completion_similarity is not None:
        progress("comparing completions", 0, None)
        dedupe.exclude_near_completions(
            catalog, config.max_completion_similarity, across_tasks=config.across_tasks
        )
    if config.best_of_group:
        filters.keep_best_of_group(catalog)
    if config.held_out:
        progress("comparing with the held-out set", 0, None)
        exclude_held_out_tasks(catalog, config.held_out, config.similarity_threshold)
    if config.to == "dpo":
        pairs.build_pairs(catalog, pairing=config.pairs, min_margin=config.min_margin)
        if config.dedupe:
            pairs.exclude_duplicate_pairs(catalog)
    if config.to == "nemo-gym-input":
        filters.keep_first_of_group(catalog)
    if config.test_size is None or not catalog.kept:
        return split.SplitByTask()
    progress("splitting", 0, None)
    return split.split_by_task(
        catalog,
        test_size=config.test_size,
        similarity=config.similarity_threshold,
        seed=config.seed,
    )


def _check_any_kept(catalog: Catalog) -> None:
    if catalog.kept:
        return
    if not catalog.total:
        raise RunError("These runs have no episodes yet.")
    counts = catalog.excluded_counts
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
    hint = _HINT_BY_REASON.get(max(counts, key=lambda reason: counts[reason]), "Relax the filters.")
    if counts.get(dedupe.DUPLICATE, 0) >= counts.get("alone", inf):
        hint = _ONLY_DUPLICATES_HINT
    raise RunError(f"None of {catalog.total:,} episodes is left: {reasons}. {hint}")
