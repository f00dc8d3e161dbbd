"""Where the loss is, token by token, in the batches that TRL's trainers really compute with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from policy.models import tiny
from students import of_family, student

from ludus.errors import RunError
from ludus.policy.chat.chat_format import find_chat_format
from ludus.train.callbacks import RunCallback
from ludus.train.config import Method, TrainConfig
from ludus.train.data import prepared_data
from ludus.train.data.loading import open_data
from ludus.train.data.loss_mask import LossMaskIndex, check_loss_mask
from ludus.train.data.tokenization import RowTokenizer
from ludus.train.distributed import Distributed
from ludus.train.progress import NoProgress
from ludus.train.trl_config import build_trl_config, set_data_dependent_fields
from ludus.train.trl_trainers import build_trainer
from train.lessons import dpo_row, quick, sft_row, write

LLAMA = "{{ bos_token }}<|start_header_id|>x<|end_header_id|><|eot_id|>"
"""A template that knows no tools, of a vocabulary that tells the family."""
FAMILIES: dict[str, Any] = {
    "qwen3": lambda: of_family("qwen3"),
    "chatml": student,
    "llama3": lambda: student(LLAMA),
}
SFT = [sft_row(number, turns=1 + number % 3) for number in range(6)]
DPO = [dpo_row(number, turns=2 + number % 3) for number in range(4)]


def trainer(folder: Path, tokenizer: Any, method: Method, config: TrainConfig) -> Any:
    """Built as `ludus.train.offline` does, on a new tiny model."""
    data = open_data(write(folder / "rows.jsonl", SFT if method == "sft" else DPO))
    row_tokenizer = RowTokenizer(tokenizer, find_chat_format(tokenizer).template, method)
    tokens = folder / "tokens"
    tokenized = prepared_data.tokenize_splits(data, row_tokenizer, tokens)
    prepared = prepared_data.prepare(
        tokenized, data, method, config, "m", context_length=2048, folder=tokens
    )
    trl_config = build_trl_config(method, config, folder)
    set_data_dependent_fields(
        trl_config, config, learning_rate=1e-4, max_length=prepared.max_length, steps=3,
        has_test_rows=False,
    )  # fmt: skip
    callback = RunCallback(folder, NoProgress(), Distributed(), checkpoint_every=60)
    return build_trainer(
        method, model=tiny(tokenizer), trl_config=trl_config, tokenizer=tokenizer, config=config,
        train_dataset=prepared_data.load_train_rows(tokens), eval_dataset=None, callback=callback,
    )  # fmt: skip


def batch_of(made: Any) -> dict[str, Any]:
    return dict(next(iter(made.get_train_dataloader())))


def expected(tokenizer: Any, prompt: Sequence[Any], said: Sequence[Any], tools: Any) -> Any:
    """Tokens and labels as transformers itself makes them, one conversation at a time."""
    template = find_chat_format(tokenizer).template
    how = {"tools": tools, "chat_template": template, "tokenize": True, "return_dict": True}
    whole = tokenizer.apply_chat_template(
        [*prompt, *said], return_assistant_tokens_mask=True, **how
    )
    asked = len(
        tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, **how)["input_ids"]
        if prompt
        else []
    )
    marks = [0] * asked + whole["assistant_masks"][asked:]
    ids = whole["input_ids"]
    labels = [token if mark else -100 for token, mark in zip(ids, marks, strict=True)]
    # Nothing is learned from what stands behind the last word of the assistant.
    end = max(at for at, mark in enumerate(marks) if mark) + 1
    return tuple(ids[:end]), tuple(labels[:end])


def rows_in(batch: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The batch taken apart by its attention mask."""
    labels = batch.get("labels")
    if labels is None:
        labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100)
    found = []
    for ids, marks, kept in zip(batch["input_ids"], labels, batch["attention_mask"], strict=True):
        size = int(kept.sum())
        assert (marks[size:] == -100).all()
        found.append((tuple(ids[:size].tolist()), tuple(marks[:size].tolist())))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_sft_bears_its_loss_on_the_assistants_tokens_alone(tmp_path: Path, family: str) -> None:
    tokenizer: Any = FAMILIES[family]()
    batch = batch_of(trainer(tmp_path, tokenizer, "sft", quick(batch_size=6)))
    wanted = [expected(tokenizer, [], row["messages"], row["tools"]) for row in SFT]
    assert sorted(rows_in(batch)) == sorted(wanted)
    learned = tokenizer.decode([mark for mark in wanted[2][1] if mark != -100])
    assert '"be\\" it' in learned and "sum" not in learned


@pytest.mark.parametrize("family", FAMILIES)
def test_dpo_bears_its_loss_on_the_assistants_tokens_of_both_sides(
    tmp_path: Path, family: str
) -> None:
    tokenizer: Any = FAMILIES[family]()
    batch = batch_of(trainer(tmp_path, tokenizer, "dpo", quick(batch_size=4)))
    found = rows_in(batch)
    for side, half in (("chosen", found[:4]), ("rejected", found[4:])):
        wanted = [expected(tokenizer, row["prompt"], row[side], row["tools"]) for row in DPO]
        assert sorted(half) == sorted(wanted)
    learned = tokenizer.decode([mark for _, marks in found for mark in marks if mark != -100])
    assert "No idea." in learned and "sum" not in learned
    assert batch["ref_chosen_logps"].shape == (4,)


@pytest.mark.parametrize("packing", [True, False])
def test_without_padding_the_loss_is_where_it_was(tmp_path: Path, packing: bool) -> None:
    tokenizer = student()
    made = trainer(tmp_path, tokenizer, "sft", quick(batch_size=6, packing=packing))
    # As on a GPU, where rows that are not packed are laid end to end as well.
    made.data_collator.padding_free = True
    batch = batch_of(made)
    assert "attention_mask" not in batch
    found = rows_of_positions(batch)
    wanted = [expected(tokenizer, [], row["messages"], row["tools"]) for row in SFT]
    assert set(found) <= set(wanted) and len(found) > 1
    marked = LossMaskIndex.build(prepared_data.load_unpacked_rows(tmp_path / "tokens"), "sft")
    assert check_loss_mask(batch, marked) == sum(m != -100 for _, marks in found for m in marks)


def rows_of_positions(batch: dict[str, Any]) -> list[tuple[Any, Any]]:
    starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
    ends = [*starts[1:], batch["input_ids"].shape[1]]
    parts = [slice(*each) for each in zip(starts, ends, strict=True)]
    return [
        (tuple(batch["input_ids"][0][part].tolist()), tuple(batch["labels"][0][part].tolist()))
        for part in parts
    ]


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_batch_that_bears_loss_elsewhere_is_never_trained_on(
    tmp_path: Path, method: Method
) -> None:
    made = trainer(tmp_path, student(), method, quick())
    made.loss_masks = LossMaskIndex.build(
        prepared_data.load_unpacked_rows(tmp_path / "tokens"), method
    )
    inner = made.data_collator

    def careless(rows: Any) -> Any:
        batch = inner(rows)
        if method == "sft":
            batch["labels"] = batch["input_ids"].clone()
        else:
            batch["completion_mask"] = batch["attention_mask"].clone()
        return batch

    made.data_collator = careless
    before = {name: weight.clone() for name, weight in made.model.named_parameters()}
    with pytest.raises(RunError, match="bears"):
        made.train()
    assert all((before[name] == weight).all() for name, weight in made.model.named_parameters())


def test_one_mark_too_few_is_noticed_and_so_is_a_strange_row(tmp_path: Path) -> None:
    made = trainer(tmp_path, student(), "sft", quick())
    marked = LossMaskIndex.build(prepared_data.load_unpacked_rows(tmp_path / "tokens"), "sft")
    batch = batch_of(made)
    check_loss_mask(batch, marked)
    row, place = (batch["labels"] != -100).nonzero()[-1].tolist()
    batch["labels"][row, place] = -100
    with pytest.raises(RunError, match="on other tokens than were marked"):
        check_loss_mask(batch, marked)
    batch["input_ids"][row, 0] += 1
    with pytest.raises(RunError, match="that no row of the data has"):
        check_loss_mask(batch, marked)
