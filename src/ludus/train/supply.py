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
from ludus.train.faithful import check_rows
from ludus.train.rows import DataSet
from ludus.train.settings import Method, Settings
from ludus.train.suitable import find, fitted, refuse, shape_of, wanted_length
from ludus.train.tokens import Maker, Tokens, tokenize

TEST_ROWS = 256
"""On so many rows the eval loss is measured: enough to see it turn, and quickly done."""
_TRAIN, _TEST, _PACKED, _ABOUT = "train.arrow", "test.arrow", "packed", "supply.json"


@dataclass(frozen=True, slots=True)
class Supply:
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
class Draft:
    """Rows as tokens, before it is known how long they may be."""

    train: Tokens
    test: Tokens | None


def draft(data: DataSet, maker: Maker, to: Path, progress: PhaseProgress | None = None) -> Draft:
    """Make tokens of all rows. What is wrong with one of them is said here."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    check_rows(data.train, maker.tokenizer, maker.template, maker.method, maker.vision)
    train = tokenize(data.train, maker, to / "rows.arrow", progress=progress)
    if not train.read:
        raise ConfigError(f"{data.name} holds no rows to train on.")
    if data.test is None:
        return Draft(train, None)
    test = tokenize(data.test, maker, to / "test-rows.arrow", progress=progress, at_most=TEST_ROWS)
    return Draft(train, test)


def supply(
    made: Draft, data: DataSet, method: Method, config: Settings, model: str,
    *, context: int | None, to: Path, image: int | None = None,
) -> Supply:  # fmt: skip
    """Cut and pack; raise where rows would be trained on of which nothing can be learned.

    `image` is the token that stands for a part of an image; None: the model reads only text.
    """
    dataset = made.train.load()
    shape = shape_of(dataset, method)
    asked = config.max_length or _measured(data, model, context)
    max_length = wanted_length(shape, asked=asked, context_length=context)
    found = find(made.train, shape, max_length)
    if not config.drop:
        refuse(found, data.train, context_length=context)
    kept = fitted(dataset, shape, method, max_length, to / _TRAIN, image)
    if not len(kept):
        raise ConfigError(f"{data.name} holds no row that can be learned from.")
    if config.packing:
        _pack(kept, max_length, config.seed).save_to_disk(to / _PACKED)
    test = _test(made.test, method, max_length, to, image)
    environments = dict(made.train.environments)
    done = Supply(len(kept), found.count, found.shortened, test, max_length, environments)
    (to / _ABOUT).write_text(json.dumps(asdict(done)), encoding="utf-8")
    return done


def read_supply(folder: Path) -> Supply:
    """What another process made."""
    return Supply(**json.loads((folder / _ABOUT).read_text(encoding="utf-8")))


def marked_rows(folder: Path) -> Any:
    """The rows as they were marked, before anything was packed."""
    return _opened(folder / _TRAIN)


def train_rows(folder: Path) -> Any:
    from datasets import load_from_disk

    packed = folder / _PACKED
    return load_from_disk(str(packed)) if packed.is_dir() else _opened(folder / _TRAIN)


def test_rows(folder: Path) -> Any | None:
    return _opened(folder / _TEST) if (folder / _TEST).is_file() else None


def _measured(data: DataSet, model: str, context: int | None) -> int | None:
    known = data.measured_for(model)
    return known if known is None or context is None else min(known, context)


def _pack(rows: Any, max_length: int, seed: int) -> Any:
    """Rows that stand together in a pack came from all over: neighbours are often alike."""
    from trl import pack_dataset

    return pack_dataset(rows.shuffle(seed=seed), max_length, "bfd")


def _test(
    tokens: Tokens | None, method: Method, max_length: int, to: Path, image: int | None
) -> int:
    """Test rows that cannot be learned from cannot be measured on either."""
    if tokens is None or not tokens.read:
        return 0
    dataset = tokens.load()
    kept = fitted(dataset, shape_of(dataset, method), method, max_length, to / _TEST, image)
    if not len(kept):
        (to / _TEST).unlink()
    return len(kept)


def _opened(file: Path) -> Any:
    from datasets import Dataset

    return Dataset.from_file(str(file))
