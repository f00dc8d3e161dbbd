"""The data that a trainer gets: tokenized, checked, truncated, and packed if requested.

The main process writes it into the folder `tokens`; the other ranks load it from there.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError
from ludus.rollout.phase_progress import PhaseProgress
from ludus.train.config import Method, TrainConfig
from ludus.train.data.filtering import (
    check_usable,
    choose_max_length,
    find_unusable,
    measure_rows,
    write_usable_rows,
)
from ludus.train.data.loading import TrainingData
from ludus.train.data.template_fidelity import check_template_fidelity
from ludus.train.data.tokenization import RowTokenizer, TokenizedRows, tokenize

MAX_TEST_ROWS = 256
"""Rows on which the eval loss is measured: enough to see it rise, and fast."""
_TRAIN_FILE, _TEST_FILE, _PACKED_DIR = "train.arrow", "test.arrow", "packed"
_INFO_FILE = "supply.json"


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Counts of the prepared rows, written beside them."""

    rows: int
    """Rows that are trained on."""
    left_out: int
    cut: int
    """Rows that are truncated, of those that are trained on."""
    test_rows: int
    max_length: int
    environments: dict[str, int] = field(default_factory=dict)
    """How many rows come from which environment, where rows say so."""


@dataclass(frozen=True, slots=True)
class TokenizedSplits:
    """The tokenized rows, before truncation."""

    train: TokenizedRows
    test: TokenizedRows | None


def tokenize_splits(
    data: TrainingData,
    row_tokenizer: RowTokenizer,
    folder: Path,
    progress: PhaseProgress | None = None,
) -> TokenizedSplits:
    """Tokenize all rows into `folder`. Raises for the first invalid row."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    check_template_fidelity(data.train, row_tokenizer)
    train = tokenize(data.train, row_tokenizer, folder / "rows.arrow", progress=progress)
    if not train.rows_read:
        raise ConfigError(f"{data.name} has no rows to train on.")
    if data.test is None:
        return TokenizedSplits(train, None)
    file = folder / "test-rows.arrow"
    test = tokenize(data.test, row_tokenizer, file, progress=progress, max_rows=MAX_TEST_ROWS)
    return TokenizedSplits(train, test)


def prepare(
    tokenized: TokenizedSplits, data: TrainingData, method: Method, config: TrainConfig, model: str,
    *, context_length: int | None, folder: Path, image_token: int | None = None,
) -> PreparedData:  # fmt: skip
    """Filter, truncate and pack the rows. Raises for rows that cannot be trained on.

    `image_token` is the token that images are made of; None for models that take only text.
    """
    dataset = tokenized.train.load()
    stats = measure_rows(dataset, method)
    requested = config.max_length
    if requested is None and (measured := data.measured_max_length(model)) is not None:
        requested = min(measured, context_length or measured)
    max_length = choose_max_length(stats, requested=requested, context_length=context_length)
    unusable = find_unusable(tokenized.train, stats, max_length)
    if not config.drop_untrainable:
        check_usable(unusable, data.train, context_length=context_length)
    rows = write_usable_rows(dataset, stats, method, max_length, folder / _TRAIN_FILE, image_token)
    if not len(rows):
        raise ConfigError(f"{data.name} has no row that can be trained on.")
    if config.packing:
        from trl import pack_dataset

        # Shuffled, because neighbouring rows are often alike and would be packed together.
        packed = pack_dataset(rows.shuffle(seed=config.seed), max_length, "bfd")
        packed.save_to_disk(folder / _PACKED_DIR)
    test_rows = 0
    if tokenized.test is not None and tokenized.test.rows_read:
        dataset = tokenized.test.load()
        stats, file = measure_rows(dataset, method), folder / _TEST_FILE
        # Rows without loss are left out silently: nothing can be measured on them.
        test_rows = len(write_usable_rows(dataset, stats, method, max_length, file, image_token))
        if not test_rows:
            file.unlink()
    prepared = PreparedData(
        len(rows), unusable.count, unusable.truncated, test_rows, max_length,
        dict(tokenized.train.environments),
    )  # fmt: skip
    (folder / _INFO_FILE).write_text(json.dumps(asdict(prepared)), encoding="utf-8")
    return prepared


def load_prepared_data(folder: Path) -> PreparedData:
    """The counts, as the main process wrote them."""
    return PreparedData(**json.loads((folder / _INFO_FILE).read_text(encoding="utf-8")))


def load_unpacked_rows(folder: Path) -> Any:
    """The training rows before packing."""
    return _open_dataset(folder / _TRAIN_FILE)


def load_train_rows(folder: Path) -> Any:
    """The training rows, packed if that was requested."""
    from datasets import load_from_disk

    packed = folder / _PACKED_DIR
    return load_from_disk(str(packed)) if packed.is_dir() else load_unpacked_rows(folder)


def load_test_rows(folder: Path) -> Any | None:
    """The test rows, if there are any."""
    return _open_dataset(folder / _TEST_FILE) if (folder / _TEST_FILE).is_file() else None


def _open_dataset(file: Path) -> Any:
    from datasets import Dataset

    return Dataset.from_file(str(file))
