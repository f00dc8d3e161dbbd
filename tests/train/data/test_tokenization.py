"""Tokenization of rows: labels, order, and errors with the location of a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import student

from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import find_chat_format
from ludus.train.data import tokenization
from ludus.train.data.tokenization import RowTokenizer, tokenize
from ludus.train.data.training_data import JsonlRows
from train.sample_rows import sft_row, write_jsonl


def tokenized(folder: Path, rows: Any, max_rows: int | None = None) -> Any:
    """The rows as a data set of tokens."""
    split = JsonlRows(write_jsonl(folder / "rows.jsonl", rows))
    tokenizer = student()
    row_tokenizer = RowTokenizer(tokenizer, find_chat_format(tokenizer).template, "sft")
    return tokenize(split, row_tokenizer, folder / "rows.arrow", max_rows=max_rows).load()


def use_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "_BATCH_ROWS", 2)
    monkeypatch.setattr(tokenization, "_PARALLEL_MIN_BATCHES", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def test_the_loss_is_on_the_assistants_tokens(tmp_path: Path) -> None:
    (row,) = tokenized(tmp_path, [sft_row(3)])
    text = student().decode([label for label in row["labels"] if label != -100])
    assert '{"name": "add", "arguments": {"a": 31' in text and "Done: and and and done." in text
    assert "sum 31" not in text and "Add up to" not in text
    pairs = zip(row["input_ids"], row["labels"], strict=True)
    assert all(label in (token, -100) for token, label in pairs)


def test_parallel_workers_give_the_same_rows_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [sft_row(n) for n in range(40)]
    expected = tokenized(tmp_path, rows)[:]
    use_two_workers(monkeypatch)
    assert tokenized(tmp_path, rows)[:] == expected


def test_an_invalid_row_raises_with_its_location_from_a_worker_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_two_workers(monkeypatch)
    with pytest.raises(ConfigError, match=r"rows\.jsonl:7 .*`messages`"):
        tokenized(tmp_path, [*map(sft_row, range(6)), {"messages": []}])


def test_max_rows_limits_the_rows_that_are_read(tmp_path: Path) -> None:
    assert len(tokenized(tmp_path, map(sft_row, range(9)), max_rows=4)) == 4
