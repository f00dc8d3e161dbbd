"""From rows on the disk to what a trainer is fed: tokens, checked, cut, and packed if asked.

One process does it; the others read what it left.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError
from ludus.rollout.progress import PhaseProgress
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
"""On so many rows the eval loss is measured: enough to see it turn, and quickly done."""
_TRAIN_FILE, _TEST_FILE, _PACKED_DIR, _INFO_FILE = (
    "train.arrow",
    "test.arrow",
    "packed",
    "supply.json",
)


@dataclass(frozen=True, slots=True)
class PreparedData:
    """What was made of the rows."""

    rows: int
    """That are trained on."""
    left_out: int
    cut: int
    """Of the rows, those that lost their end."""
    test_rows: int
    max_length: int
    environments: dict[str, int] = field(default_factory=dict)
    """How many rows came from which environment, where rows say so."""


@dataclass(frozen=True, slots=True)
class TokenizedSplits:
    """Rows as tokens, before it is known how long they may be."""

    train: TokenizedRows
    test: TokenizedRows | None


def tokenize_splits(
    data: TrainingData,
    row_tokenizer: RowTokenizer,
    folder: Path,
    progress: PhaseProgress | None = None,
) -> TokenizedSplits:
    """Make tokens of all rows. What is wrong with one of them is said here."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    check_template_fidelity(
        data.train,
        row_tokenizer.tokenizer,
        row_tokenizer.template,
        row_tokenizer.method,
        row_tokenizer.vision,
    )
    train = tokenize(data.train, row_tokenizer, folder / "rows.arrow", progress=progress)
    if not train.rows_read:
        raise ConfigError(f"{data.name} holds no rows to train on.")
    if data.test is None:
        return TokenizedSplits(train, None)
    test = tokenize(
        data.test,
        row_tokenizer,
        folder / "test-rows.arrow",
        progress=progress,
        max_rows=MAX_TEST_ROWS,
    )
    return TokenizedSplits(train, test)


def prepare(
    tokenized: TokenizedSplits, data: TrainingData, method: Method, config: TrainConfig, model: str,
    *, context_length: int | None, folder: Path, image_token: int | None = None,
) -> PreparedData:  # fmt: skip
    """Cut and pack; raise where rows would be trained on of which nothing can be learned.

    `image` is the token that stands for a part of an image; None: the model reads only text.
    """
    dataset = tokenized.train.load()
    shape = measure_rows(dataset, method)
    asked = config.max_length or _curated_max_length(data, model, context_length)
    max_length = choose_max_length(shape, requested=asked, context_length=context_length)
    found = find_unusable(tokenized.train, shape, max_length)
    if not config.drop:
        check_usable(found, data.train, context_length=context_length)
    kept = write_usable_rows(dataset, shape, method, max_length, folder / _TRAIN_FILE, image_token)
    if not len(kept):
        raise ConfigError(f"{data.name} holds no row that can be learned from.")
    if config.packing:
        _pack(kept, max_length, config.seed).save_to_disk(folder / _PACKED_DIR)
    test = _write_test_rows(tokenized.test, method, max_length, folder, image_token)
    environments = dict(tokenized.train.environments)
    done = PreparedData(len(kept), found.count, found.truncated, test, max_length, environments)
    (folder / _INFO_FILE).write_text(json.dumps(asdict(done)), encoding="utf-8")
    return done


def load_prepared_data(folder: Path) -> PreparedData:
    """What another process made."""
    return PreparedData(**json.loads((folder / _INFO_FILE).read_text(encoding="utf-8")))


def load_unpacked_rows(folder: Path) -> Any:
    """The rows as they were marked, before anything was packed."""
    return _open_dataset(folder / _TRAIN_FILE)


def load_train_rows(folder: Path) -> Any:
    from datasets import load_from_disk

    packed = folder / _PACKED_DIR
    return load_from_disk(str(packed)) if packed.is_dir() else _open_dataset(folder / _TRAIN_FILE)


def load_test_rows(folder: Path) -> Any | None:
    return _open_dataset(folder / _TEST_FILE) if (folder / _TEST_FILE).is_file() else None


def _curated_max_length(data: TrainingData, model: str, context: int | None) -> int | None:
    known = data.measured_max_length(model)
    return known if known is None or context is None else min(known, context)


def _pack(rows: Any, max_length: int, seed: int) -> Any:
    """Rows that stand together in a pack came from all over: neighbours are often alike."""
    from trl import pack_dataset

    return pack_dataset(rows.shuffle(seed=seed), max_length, "bfd")


def _write_test_rows(
    tokens: TokenizedRows | None, method: Method, max_length: int, to: Path, image: int | None
) -> int:
    """Test rows that cannot be learned from cannot be measured on either."""
    if tokens is None or not tokens.rows_read:
        return 0
    dataset = tokens.load()
    kept = write_usable_rows(
        dataset, measure_rows(dataset, method), method, max_length, to / _TEST_FILE, image
    )
    if not len(kept):
        (to / _TEST_FILE).unlink()
    return len(kept)


def _open_dataset(file: Path) -> Any:
    from datasets import Dataset

    return Dataset.from_file(str(file))
