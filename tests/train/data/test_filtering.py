"""Rows that cannot be trained on, truncation, and the choice of `max_length`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import of_family, student

from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import find_chat_format
from ludus.train.config import Method
from ludus.train.data.prepared_data import (
    check_usable,
    choose_max_length,
    measure_rows,
    write_usable_rows,
)
from ludus.train.data.tokenization import RowTokenizer, TokenizedRows, tokenize
from ludus.train.data.training_data import JsonlRows
from train.sample_rows import chat_messages, dpo_row, sft_row, write_jsonl


def tokenized(folder: Path, rows: Any, method: Method = "sft") -> tuple[TokenizedRows, JsonlRows]:
    split = JsonlRows(write_jsonl(folder / "rows.jsonl", rows))
    tokenizer = student()
    row_tokenizer = RowTokenizer(tokenizer, find_chat_format(tokenizer).template, method)
    return tokenize(split, row_tokenizer, folder / "rows.arrow"), split


def check(tokens: TokenizedRows, split: JsonlRows, max_length: int, method: Method) -> None:
    stats = measure_rows(tokens.load(), method)
    check_usable(tokens, stats, max_length, split)


def test_rows_without_assistant_messages_raise_with_the_first_location(tmp_path: Path) -> None:
    no_reply = {"messages": chat_messages(1)[:1]}
    with pytest.raises(ConfigError, match=r"1 of 3 rows .*rows\.jsonl:2"):
        check(*tokenized(tmp_path, [sft_row(1), no_reply, sft_row(2)]), 2000, "sft")


def test_rows_that_the_template_rejects_raise_with_its_error(tmp_path: Path) -> None:
    odd = {"messages": [{"role": "assistant", "content": "First!"}, *chat_messages(1)]}
    split = JsonlRows(write_jsonl(tmp_path / "rows.jsonl", [sft_row(1), odd]))
    tokenizer = of_family("gemma")
    row_tokenizer = RowTokenizer(tokenizer, tokenizer.chat_template, "sft")
    tokens = tokenize(split, row_tokenizer, tmp_path / "rows.arrow")
    assert len(tokens.load()) + len(tokens.template_errors) == 2
    number, reason = tokens.template_errors[-1]
    assert number == 2
    with pytest.raises(ConfigError) as raised:
        check(tokens, split, 2000, "sft")
    assert tokens.template_errors[0][1] in str(raised.value) and reason


def test_rows_whose_replies_are_truncated_away_raise_with_the_length_that_keeps_them(
    tmp_path: Path,
) -> None:
    tokens, split = tokenized(tmp_path, [sft_row(1)])
    length = len(tokens.load()[0]["input_ids"])
    with pytest.raises(ConfigError, match=f"1 of 1 rows .*`max_length` to {length}"):
        check(tokens, split, 20, "sft")


def test_a_pair_with_one_side_truncated_away_raises(tmp_path: Path) -> None:
    tokens, split = tokenized(tmp_path, [dpo_row(1)], "dpo")
    check(tokens, split, 2000, "dpo")
    with pytest.raises(ConfigError, match="1 of 1 rows"):
        check(tokens, split, 20, "dpo")


def test_rows_are_truncated_and_those_without_loss_dropped(tmp_path: Path) -> None:
    long = {"messages": [{"role": "user", "content": "word " * 200}, *chat_messages(1)[1:]]}
    rows = tokenized(tmp_path, [sft_row(1, turns=4), long])[0].load()
    file = tmp_path / "kept.arrow"
    kept = write_usable_rows(rows, measure_rows(rows, "sft"), "sft", 150, file)
    assert kept.column_names == ["input_ids", "labels"]
    assert [row["input_ids"] for row in kept] == [rows[0]["input_ids"][:150]]
    assert [row["labels"] for row in kept] == [rows[0]["labels"][:150]]


def test_the_length_fits_the_rows_and_the_context_of_the_model(tmp_path: Path) -> None:
    rows = tokenized(tmp_path, map(sft_row, range(8)))[0].load()
    stats = measure_rows(rows, "sft")
    longest = max(map(len, rows["input_ids"]))
    assert choose_max_length(stats, requested=None, context_length=None) == longest
    assert choose_max_length(stats, requested=None, context_length=64) == 64
    assert choose_max_length(stats, requested=100, context_length=2048) == 100
    with pytest.raises(ConfigError, match=r"`max_length`.* 64.* 100"):
        choose_max_length(stats, requested=100, context_length=64)
