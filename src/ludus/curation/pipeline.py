"""The `curate` stage: filter the episodes of some runs and write them as training data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path

from ludus.curation import filters, pairs, similarity
from ludus.curation.catalog import UNREADABLE, Catalog
from ludus.curation.config import CurateConfig
from ludus.curation.load_episodes import find_episode_files
from ludus.curation.report import CARD_FILE, CurateReport, build_report, write_curation_report
from ludus.curation.similarity import TEST, TRAIN
from ludus.curation.writers import CurateProgress, write_left_out, write_rows
from ludus.data.files import atomic_dir, existing_files, lock_dir
from ludus.data.stage_output import CURATION_FILE
from ludus.errors import RunError

DATASET_FILES = ("train.jsonl", "test.jsonl", CURATION_FILE, CARD_FILE, "left_out.jsonl")
"""All files that a data set can consist of."""
_DRAFT_PREFIX = ".curating-"
_READ_BLOCK_BYTES = 1 << 20
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
    command: str | None = None,
    progress: CurateProgress | None = None,
) -> CurateReport:
    """Curate the episodes of `runs` into the folder `out`, which is written atomically.

    An existing data set is replaced if `overwrite` is set, or if it was written with the same
    configuration from the same runs (or some of them) and has not been changed since.
    `explain` adds `left_out.jsonl`, with the reason for every excluded episode. The data set card
    shows `command`.
    """
    sources = [runs] if isinstance(runs, str | Path) else runs
    folders, out = [Path(run).expanduser() for run in sources], Path(out).expanduser()
    config = config or CurateConfig()
    progress = progress or (lambda phase, done, total: None)
    files = find_episode_files(folders)
    splits = [TRAIN] if config.test_size is None else [TRAIN, TEST]
    names = [str(run) for run in folders]
    with lock_dir(out):
        _check_replaceable(out, config, names, splits, overwrite=overwrite)
        with atomic_dir(out, _DRAFT_PREFIX, marker=CURATION_FILE, owned=DATASET_FILES) as draft:
            work = draft / "work"
            work.mkdir()
            progress("reading", 0, None)
            with Catalog.open(
                files,
                work,
                where=config.where,
                contents=bool(config.dedupe) or config.is_for_training,
                labels=config.to == "sft",
            ) as catalog:
                families = _select_episodes(catalog, config, progress)
                _check_any_kept(catalog)
                written = write_rows(catalog, draft, config, splits=splits, progress=progress)
                _check_any_kept(catalog)
                if explain:
                    write_left_out(catalog, draft / "left_out.jsonl")
                report = build_report(catalog, written, families)
            write_curation_report(
                draft,
                report,
                config,
                runs=names,
                digest=_hash_files(draft / f"{name}.jsonl" for name in splits),
                location=str(out),
                command=command,
            )
    return report


def _select_episodes(catalog: Catalog, config: CurateConfig, progress: CurateProgress) -> int:
    """Exclude episodes, build pairs and assign splits; see `split_by_task`."""
    progress("filtering", 0, None)
    filters.apply_filters(catalog, config)
    # For pairs, only within tasks: the same attempt at two tasks can be part of different pairs.
    # Duplicate pairs are excluded once there are pairs.
    if config.dedupe or config.to == "dpo":
        filters.exclude_duplicates(catalog, within_tasks=config.to == "dpo")
    if config.best_of_group:
        filters.keep_best_of_group(catalog)
    if config.held_out:
        progress("comparing with the held-out set", 0, None)
        similarity.exclude_held_out_tasks(catalog, config.held_out, config.similarity_threshold)
    if config.to == "dpo":
        pairs.build_pairs(catalog, config)
        if config.dedupe:
            pairs.exclude_duplicate_pairs(catalog)
    if config.to == "nemo-gym-input":
        filters.keep_first_of_group(catalog)
    if config.test_size is None or not catalog.kept:
        return 0
    progress("splitting", 0, None)
    return similarity.split_by_task(
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
    if counts.get(filters.DUPLICATE, 0) >= counts.get("alone", inf):
        hint = _ONLY_DUPLICATES_HINT
    raise RunError(f"None of {catalog.total:,} episodes is left: {reasons}. {hint}")


def _check_replaceable(
    out: Path, config: CurateConfig, runs: Sequence[str], splits: Sequence[str], *, overwrite: bool
) -> None:
    """Raise `RunError` unless the folder is empty or holds a data set that may be replaced.

    An unchanged one with this config, of these runs or some of them, always may.
    """
    names = existing_files(out, _DRAFT_PREFIX)
    # A process that was killed while moving its files may have left all but the metadata file.
    if CURATION_FILE in names or (names and set(names) <= {*DATASET_FILES}):
        try:
            metadata = json.loads((out / CURATION_FILE).read_bytes())
            is_rerun = (
                metadata["settings"] == json.loads(json.dumps(config.as_json(), default=str))
                and set(metadata["runs"]) <= set(runs)
                and metadata["digest"] == _hash_files(out / f"{name}.jsonl" for name in splits)
            )
        except (OSError, ValueError, KeyError, TypeError):
            is_rerun = False
        if not overwrite and not is_rerun:
            raise RunError(
                f"{out} already holds a data set. Set `overwrite`, or use another `out`."
            )
    elif names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise RunError(
            f"{out} is not empty ({names[0]}{more}) and not a Ludus data set. Use another `out`."
        )


def _hash_files(files: Iterable[Path]) -> str:
    """Hash names and contents of a data set's files with xxHash, fast enough for gigabytes."""
    import xxhash

    digest, block = xxhash.xxh3_64(), bytearray(_READ_BLOCK_BYTES)
    for path in files:
        digest.update(path.name.encode())
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(block):
                digest.update(memoryview(block)[:size])
    return digest.hexdigest()
