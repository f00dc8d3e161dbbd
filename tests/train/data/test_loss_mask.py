"""Loss masks, token by token, in the batches that TRL's trainers compute with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from policy.models import tiny
from tiny_tokenizers import of_family, student

from ludus.policy.chat.chat_format import find_chat_format
from ludus.train.callbacks import RunCallback
from ludus.train.config import Method, TrainConfig
from ludus.train.data.prepared_data import PreparedRows, prepare_data
from ludus.train.data.tokenization import RowTokenizer, tokenize_splits
from ludus.train.data.training_data import open_data
from ludus.train.distributed import Distributed
from ludus.train.result import NoProgress
from ludus.train.trl_config import build_trl_config, set_data_dependent_fields
from ludus.train.trl_trainers import build_trainer
from train.sample_rows import dpo_row, sft_row, write_jsonl
from train.short_runs import train_config

LLAMA = "{{ bos_token }}<|start_header_id|>x<|end_header_id|><|eot_id|>"
"""A template without tools; the vocabulary identifies the family."""
FAMILIES: dict[str, Any] = {
    "qwen3": lambda: of_family("qwen3"),
    "chatml": student,
    "llama3": lambda: student(LLAMA),
}
SFT = [sft_row(number, turns=1 + number % 3) for number in range(6)]
DPO = [dpo_row(number, turns=2 + number % 3) for number in range(4)]


def build(folder: Path, tokenizer: Any, method: Method, config: TrainConfig) -> Any:
    """Built as `ludus.train.offline` does, on a new tiny model."""
    data = open_data(write_jsonl(folder / "rows.jsonl", SFT if method == "sft" else DPO))
    row_tokenizer = RowTokenizer(tokenizer, find_chat_format(tokenizer).template, method)
    tokens = folder / "tokens"
    tokenized = tokenize_splits(data, row_tokenizer, tokens)
    prepared = prepare_data(tokenized, data, method, config, context_length=2048, folder=tokens)
    trl_config = build_trl_config(method, config, folder)
    set_data_dependent_fields(
        trl_config, config, learning_rate=1e-4, max_length=prepared.max_length, steps=3,
        has_test_rows=False,
    )  # fmt: skip
    callback = RunCallback(folder, NoProgress(), Distributed(), checkpoint_every=60)
    context: Any = SimpleNamespace(
        method=method, config=config, trl_config=trl_config, tokenizer=tokenizer, vision=None
    )
    return build_trainer(
        context, callback, model=tiny(tokenizer), train_dataset=PreparedRows(tokens).train(),
        eval_dataset=None,
    )  # fmt: skip


def first_batch(trainer: Any) -> dict[str, Any]:
    return dict(next(iter(trainer.get_train_dataloader())))


def expected(tokenizer: Any, prompt: Sequence[Any], reply: Sequence[Any], tools: Any) -> Any:
    """Tokens and labels as transformers computes them, one conversation at a time."""
    template = find_chat_format(tokenizer).template
    arguments = {"tools": tools, "chat_template": template, "tokenize": True, "return_dict": True}
    whole = tokenizer.apply_chat_template(
        [*prompt, *reply], return_assistant_tokens_mask=True, **arguments
    )
    prompt_length = len(
        tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, **arguments)[
            "input_ids"
        ]
        if prompt
        else []
    )
    mask = [0] * prompt_length + whole["assistant_masks"][prompt_length:]
    ids = whole["input_ids"]
    labels = [token if has_loss else -100 for token, has_loss in zip(ids, mask, strict=True)]
    # Tokens after the last one with loss are dropped.
    end = max(index for index, has_loss in enumerate(mask) if has_loss) + 1
    return tuple(ids[:end]), tuple(labels[:end])


def padded_rows(batch: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The rows of a padded batch."""
    labels = batch.get("labels")
    if labels is None:
        labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100)
    rows = []
    for ids, row_labels, mask in zip(
        batch["input_ids"], labels, batch["attention_mask"], strict=True
    ):
        size = int(mask.sum())
        assert (row_labels[size:] == -100).all()
        rows.append((tuple(ids[:size].tolist()), tuple(row_labels[:size].tolist())))
    return rows


@pytest.mark.parametrize("family", FAMILIES)
def test_sft_has_loss_on_the_assistants_tokens_alone(tmp_path: Path, family: str) -> None:
    tokenizer: Any = FAMILIES[family]()
    batch = first_batch(build(tmp_path, tokenizer, "sft", train_config(batch_size=6)))
    rows = [expected(tokenizer, [], row["messages"], row["tools"]) for row in SFT]
    assert sorted(padded_rows(batch)) == sorted(rows)
    text = tokenizer.decode([label for label in rows[2][1] if label != -100])
    assert '"be\\" it' in text and "sum" not in text


@pytest.mark.parametrize("family", FAMILIES)
def test_dpo_has_loss_on_the_assistants_tokens_of_both_sides(tmp_path: Path, family: str) -> None:
    tokenizer: Any = FAMILIES[family]()
    batch = first_batch(build(tmp_path, tokenizer, "dpo", train_config(batch_size=4)))
    rows = padded_rows(batch)
    for side, half in (("chosen", rows[:4]), ("rejected", rows[4:])):
        wanted = [expected(tokenizer, row["prompt"], row[side], row["tools"]) for row in DPO]
        assert sorted(half) == sorted(wanted)
    text = tokenizer.decode([label for _, labels in rows for label in labels if label != -100])
    assert "No idea." in text and "sum" not in text
    assert batch["ref_chosen_logps"].shape == (4,)


def test_labels_are_the_same_without_padding(tmp_path: Path) -> None:
    tokenizer = student()
    trainer = build(tmp_path, tokenizer, "sft", train_config(batch_size=6))
    # As on a GPU, where rows are concatenated.
    trainer.data_collator.padding_free = True
    batch = first_batch(trainer)
    assert "attention_mask" not in batch
    rows = concatenated_rows(batch)
    wanted = [expected(tokenizer, [], row["messages"], row["tools"]) for row in SFT]
    assert set(rows) <= set(wanted) and len(rows) > 1


def concatenated_rows(batch: dict[str, Any]) -> list[tuple[Any, Any]]:
    starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
    ends = [*starts[1:], batch["input_ids"].shape[1]]
    parts = [slice(*each) for each in zip(starts, ends, strict=True)]
    return [
        (tuple(batch["input_ids"][0][part].tolist()), tuple(batch["labels"][0][part].tolist()))
        for part in parts
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_with_a_weight_of_0_has_no_loss(tmp_path: Path, family: str) -> None:
    tokenizer = FAMILIES[family]()
    row = sft_row(3, turns=3)
    row["messages"][1]["weight"], row["messages"][3]["weight"] = 0, 1
    plain, weighted = (
        RowTokenizer(tokenizer, find_chat_format(tokenizer).template, "sft")([(1, each)]).table
        for each in (sft_row(3, turns=3), row)
    )
    ids, labels = (weighted.column(name)[0].as_py() for name in ("input_ids", "labels"))
    assert ids == plain.column("input_ids")[0].as_py(), "the context stays the same"
    trained = tokenizer.decode([label for label in labels if label >= 0])
    assert "31" not in trained and "32" in trained and "Done: " in trained
