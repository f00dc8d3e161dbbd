from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from students import CHATML, student

from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import find_chat_format
from ludus.train.config import Method
from ludus.train.data import tokenization
from ludus.train.data.filtering import (
    check_usable,
    choose_max_length,
    find_unusable,
    measure_rows,
    write_usable_rows,
)
from ludus.train.data.loading import JsonlRows
from ludus.train.data.template_fidelity import check_template_fidelity
from ludus.train.data.tokenization import RowTokenizer, TokenizedRows, tokenize
from train.lessons import dpo_row, sft_row, talk, write

NAMES = (
    "{{ message.content }}{% for call in message.tool_calls %}{{ call.function.name }}{% endfor %}"
)
CALLS = "{% if message.role != 'tool' %}{{ message.content }}{{ message.tool_calls }}{% endif %}"
"""What a careless template writes of a message: names alone, or everything but results."""


def maker(method: Method = "sft") -> RowTokenizer:
    tokenizer = student()
    return RowTokenizer(tokenizer, find_chat_format(tokenizer).template, method)


def made(folder: Path, rows: Any, method: Method = "sft") -> tuple[TokenizedRows, JsonlRows]:
    split = JsonlRows(write(folder / "rows.jsonl", rows))
    return tokenize(split, maker(method), folder / "rows.arrow"), split


def checked(folder: Path, rows: Any, max_length: int, method: Method = "sft") -> None:
    found, split = made(folder, rows, method)
    check_usable(
        find_unusable(found, measure_rows(found.load(), method), max_length),
        split,
        context_length=None,
    )


def test_the_loss_is_on_what_the_assistant_wrote(tmp_path: Path) -> None:
    (row,) = made(tmp_path, [sft_row(3)])[0].load()
    learned = [token for token in row["labels"] if token != -100]
    text = student().decode(learned)
    assert '{"name": "add", "arguments": {"a": 31' in text and "Done: and and and done." in text
    assert "sum 31" not in text and "Add up to" not in text
    pairs = zip(row["input_ids"], row["labels"], strict=True)
    assert all(label in (token, -100) for token, label in pairs)


def test_other_processes_make_the_same_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [sft_row(n) for n in range(40)]
    here = made(tmp_path, rows)[0].load()[:]
    monkeypatch.setattr(tokenization, "_BATCH_ROWS", 4)
    monkeypatch.setattr(tokenization, "_PARALLEL_MIN_BATCHES", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert made(tmp_path, rows)[0].load()[:] == here


def test_a_bad_row_is_told_by_its_place_from_another_process_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenization, "_BATCH_ROWS", 2)
    monkeypatch.setattr(tokenization, "_PARALLEL_MIN_BATCHES", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"rows\.jsonl:7 has no messages in `messages`\.$"):
        made(tmp_path, [*map(sft_row, range(6)), {"messages": []}])


def test_only_so_many_rows_are_read_as_are_asked_for(tmp_path: Path) -> None:
    split = JsonlRows(write(tmp_path / "rows.jsonl", map(sft_row, range(9))))
    found = tokenize(split, maker(), tmp_path / "a", max_rows=4)
    assert found.rows_read == len(found.load()) == 4


def test_rows_without_a_word_of_the_assistant_are_refused_with_their_place(tmp_path: Path) -> None:
    silent = {"messages": talk(1)[:1]}
    with pytest.raises(ConfigError, match=r"1 of 3 rows hold no word .*rows\.jsonl:2"):
        checked(tmp_path, [sft_row(1), silent, sft_row(2)], 2000)


def test_rows_that_the_template_refuses_are_refused_with_its_words(tmp_path: Path) -> None:
    from students import of_family

    odd = {"messages": [{"role": "assistant", "content": "First!"}, *talk(1)]}
    split = JsonlRows(write(tmp_path / "rows.jsonl", [sft_row(1), odd]))
    tokenizer = of_family("gemma")
    under = RowTokenizer(tokenizer, tokenizer.chat_template, "sft")
    found = tokenize(split, under, tmp_path / "rows.arrow")
    assert len(found.load()) + len(found.template_errors) == 2
    number, why = found.template_errors[-1]
    shape = measure_rows(found.load(), "sft")
    with pytest.raises(
        ConfigError, match=r"cannot be shown to this model; the first is .*: the te"
    ):
        check_usable(find_unusable(found, shape, 2000), split, context_length=None)
    assert number == 2 and "refuses" in why


def test_rows_whose_answer_is_cut_off_name_the_length_that_keeps_them(tmp_path: Path) -> None:
    found = made(tmp_path, [sft_row(1)])[0].load()
    whole = len(found[0]["input_ids"])
    with pytest.raises(ConfigError, match=rf"1 of 1 rows lose all .* --max-length {whole} keeps"):
        checked(tmp_path, [sft_row(1)], 20)


def test_a_pair_of_which_one_side_is_cut_off_is_refused(tmp_path: Path) -> None:
    checked(tmp_path, [dpo_row(1)], 2000, "dpo")
    with pytest.raises(ConfigError, match="1 of 1 rows lose all"):
        checked(tmp_path, [dpo_row(1)], 20, "dpo")


def test_rows_are_cut_and_those_with_nothing_left_go(tmp_path: Path) -> None:
    long = {"messages": [{"role": "user", "content": "word " * 200}, *talk(1)[1:]]}
    found = made(tmp_path, [sft_row(1, turns=4), long])[0].load()
    kept = write_usable_rows(found, measure_rows(found, "sft"), "sft", 150, tmp_path / "kept.arrow")
    assert kept.column_names == ["input_ids", "labels"]
    assert [row["input_ids"] for row in kept] == [found[0]["input_ids"][:150]]
    assert [row["labels"] for row in kept] == [found[0]["labels"][:150]]


def test_a_length_is_measured_and_never_beyond_what_the_model_reads(tmp_path: Path) -> None:
    found = made(tmp_path, map(sft_row, range(8)))[0].load()
    shape = measure_rows(found, "sft")
    longest = max(map(len, found["input_ids"]))
    assert choose_max_length(shape, requested=None, context_length=None) == longest
    assert choose_max_length(shape, requested=None, context_length=64) == 64
    assert choose_max_length(shape, requested=100, context_length=2048) == 100
    with pytest.raises(ConfigError, match="--max-length 100 is more than this model reads: 64"):
        choose_max_length(shape, requested=100, context_length=64)


@pytest.mark.parametrize(
    ("row", "template", "said"),
    [
        (sft_row(1), CHATML, "the tool add"),
        ({"messages": talk(1)}, CHATML, "the call of add"),
        ({"messages": talk(1)}, CHATML.replace("{{ message.content }}", NAMES), "a of the call"),
        ({"messages": talk(1)}, CHATML.replace("{{ message.content }}", CALLS), "what a tool"),
    ],
)
def test_what_a_template_loses_is_found_out_on_the_rows(
    tmp_path: Path, row: Any, template: str, said: str
) -> None:
    split = JsonlRows(write(tmp_path / "rows.jsonl", [{"messages": talk(1)[:1]}, row]))
    check_template_fidelity(split, student(), find_chat_format(student()).template, "sft")
    with pytest.raises(ConfigError, match=rf"rows\.jsonl:2: the chat template loses {said}"):
        check_template_fidelity(split, student(), template, "sft")
