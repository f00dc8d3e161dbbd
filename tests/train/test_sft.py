"""Supervised fine-tuning, from rows to a model that loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from policy.models import saved
from tiny_tokenizers import student

from ludus import sft
from ludus.errors import ConfigError, RunError
from ludus.train import Lora
from train.sample_rows import sft_data, sft_row, write_jsonl
from train.short_runs import RecordingProgress, read_curve, same_curve, train_config

MODEL = {"config.json", "generation_config.json", "model.safetensors"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
RECORD = {"README.md", "training.json", "log.jsonl", "loss.png"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base")))


def load_with_transformers(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    return model, AutoTokenizer.from_pretrained(folder)


def test_a_model_learns_its_rows_and_loads_with_transformers(tmp_path: Path, base: str) -> None:
    data, out, progress = (
        sft_data(tmp_path / "d", rows=8, test=2),
        tmp_path / "out",
        RecordingProgress(),
    )
    config = train_config(epochs=3, learning_rate=1e-2)
    result = sft(data, base, out, config, command="ludus train sft …", progress=progress)

    assert {path.name for path in out.iterdir()} == MODEL | TOKENIZER | RECORD
    model, tokenizer = load_with_transformers(out)
    asked = tokenizer("Done", return_tensors="pt")
    assert model.generate(**asked, max_new_tokens=2).shape[1] > asked.input_ids.shape[1]
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert "{% generation %}" in tokenizer.chat_template.replace("{%- ", "{% ")

    lines = read_curve(out)
    assert progress.started == (12, None) and [line["step"] for line in progress.lines] == [
        *range(1, 5), 4, *range(5, 9), 8, *range(9, 13), 12,
    ]  # fmt: skip
    assert lines[-2]["loss"] < lines[0]["loss"] - 0.5 and lines[-1]["eval_loss"] > 0
    assert {"learning_rate", "grad_norm", "mean_token_accuracy", "entropy", "tokens", "epoch"} <= (
        lines[0].keys()
    )
    assert all(type(line["tokens"]) is int for line in (*lines, *progress.lines) if "loss" in line)
    record = json.loads((out / "training.json").read_text())
    assert record["metrics"]["steps"] == result.steps == 12
    assert record["metrics"]["tokens"] == result.tokens == lines[-2]["tokens"]
    assert record["data"]["rows"] == 8 and record["data"]["test_rows"] == 2
    assert record["chat_format"] == {
        "name": "chatml", "origin": "ludus", "chat_template_kwargs": {},
    }  # fmt: skip
    assert result.loss == pytest.approx(lines[-2]["loss"]) and result.stopped is None


def test_a_finished_run_is_left_alone_and_another_config_raises(tmp_path: Path, base: str) -> None:
    data, out, config = sft_data(tmp_path / "d", rows=2), tmp_path / "out", train_config()
    first = sft(data, base, out, config)
    stamp, progress = (out / "model.safetensors").stat().st_mtime_ns, RecordingProgress()
    assert sft(data, base, out, config, progress=progress).steps == first.steps
    assert (out / "model.safetensors").stat().st_mtime_ns == stamp
    assert progress.messages and progress.started is None
    same = {"logging_steps": "5"}
    assert sft(data, base, out, train_config(overrides=same)).steps == first.steps
    assert (out / "model.safetensors").stat().st_mtime_ns == stamp

    with pytest.raises(RunError, match=r"epochs: 1 .*2"):
        sft(data, base, out, train_config(epochs=2))
    (out / "notes.txt").write_text("mine")
    assert sft(data, base, out, train_config(epochs=2), overwrite=True).steps == 2 * first.steps
    assert (out / "notes.txt").read_text() == "mine"


def test_steps_replace_epochs(tmp_path: Path, base: str) -> None:
    data, out, config = (
        sft_data(tmp_path / "d"),
        tmp_path / "out",
        train_config(epochs=None, steps=5),
    )
    assert sft(data, base, out, config).steps == 5
    settings = json.loads((out / "training.json").read_text())["settings"]
    assert (settings["steps"], settings["epochs"]) == (5, None)
    assert sft(data, base, out, config).steps == 5, "the run is finished"


def test_a_folder_with_other_files_is_never_touched(tmp_path: Path, base: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("…")
    for overwrite in (False, True):
        with pytest.raises(RunError, match=r"thesis\.tex"):
            sft(sft_data(tmp_path / "d"), base, out, train_config(), overwrite=overwrite)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


def test_an_adapter_is_merged_and_also_saved(tmp_path: Path, base: str) -> None:
    import torch
    from peft import PeftModel

    out, config = tmp_path / "out", train_config(lora=Lora(rank=4), learning_rate=1e-2)
    sft(sft_data(tmp_path / "d"), base, out, config)
    assert {path.name for path in (out / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len({path.stat().st_mode for path in files}) == 1, (
        "the weights have the mode of the other files"
    )
    merged, tokenizer = load_with_transformers(out)
    adapter_config = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert adapter_config["base_model_name_or_path"] == base
    with_adapter = PeftModel.from_pretrained(load_with_transformers(Path(base))[0], out / "adapter")
    ids = tokenizer("Add up to 3.", return_tensors="pt").input_ids
    with torch.no_grad():
        adapted, plain = with_adapter(ids).logits, load_with_transformers(Path(base))[0](ids).logits
        assert torch.allclose(merged(ids).logits, adapted, atol=1e-4)
    assert not torch.allclose(adapted, plain, atol=1e-2)


def test_an_unmerged_adapter_loads_on_its_base_model(tmp_path: Path, base: str) -> None:
    from ludus.policy.load import load

    out, config = tmp_path / "out", train_config(lora=Lora(rank=4, merge_adapter=False))
    sft(sft_data(tmp_path / "d"), base, out, config)
    names = {path.name for path in out.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} | TOKENIZER | RECORD == names
    assert load(str(out), device="cpu").chat_format.name == "chatml"


def test_weights_are_saved_in_the_dtype_of_the_base_model(tmp_path: Path) -> None:
    import torch
    from policy.models import tiny

    tiny(student()).to(torch.bfloat16).save_pretrained(tmp_path / "base")
    student().save_pretrained(tmp_path / "base")
    sft(sft_data(tmp_path / "d", rows=2), str(tmp_path / "base"), tmp_path / "out", train_config())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_with_transformers(tmp_path / "out")[0].dtype == torch.bfloat16


def test_gradient_checkpointing_gives_the_same_loss(tmp_path: Path, base: str) -> None:
    data, more = sft_data(tmp_path / "d", rows=4), {"lora": Lora(rank=4), "learning_rate": 1e-2}
    for checkpointing in (False, True):
        config = train_config(gradient_checkpointing=checkpointing, **more)
        sft(data, base, tmp_path / str(checkpointing), config)
    one, other = read_curve(tmp_path / "False"), read_curve(tmp_path / "True")
    assert same_curve(one, other, lambda x: pytest.approx(x, rel=1e-5))


def test_untrainable_rows_raise_unless_they_are_dropped(tmp_path: Path, base: str) -> None:
    no_reply = {"messages": [{"role": "user", "content": "Anybody?"}]}
    data = write_jsonl(tmp_path / "rows.jsonl", [sft_row(1), no_reply, sft_row(2)])
    with pytest.raises(ConfigError, match=r"1 of 3 rows .*rows\.jsonl:2"):
        sft(data, base, tmp_path / "out", train_config())
    sft(data, base, tmp_path / "out", train_config(drop_untrainable=True))
    data_record = json.loads((tmp_path / "out" / "training.json").read_text())["data"]
    assert (data_record["rows"], data_record["dropped"]) == (2, 1)


def test_truncated_rows_are_counted_and_reported(tmp_path: Path, base: str) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", [sft_row(1), sft_row(2, turns=6)])
    progress, whole = RecordingProgress(), RecordingProgress()
    sft(data, base, tmp_path / "out", train_config(max_length=330), progress=progress)
    sft(data, base, tmp_path / "whole", train_config(), progress=whole)
    truncated = [json.loads((tmp_path / out / "training.json").read_text())["data"]["truncated"]
            for out in ("out", "whole")]  # fmt: skip
    assert truncated == [1, 0]
    assert [
        message for message in progress.messages if "1 of 2 rows" in message and "330" in message
    ]
    assert not [message for message in whole.messages if "truncated" in message]


@pytest.mark.parametrize(
    ("rows", "fields", "culprit"),
    [
        ([], {}, "no rows"),
        ([{"messages": 3}], {}, r"rows\.jsonl:1 .*`messages`"),
        ([sft_row(1)], {"max_length": 4096}, "`max_length` .*2048"),
        ([sft_row(1)], {"lora": Lora(target_modules=("nowhere",))}, "nowhere"),
        ([sft_row(1)], {"overrides": {"optim": "best"}}, "best"),
        ([sft_row(1)], {"precision": "fp16"}, "`precision` fp16"),
        ([sft_row(1)], {"overrides": {"optim": "adamw_8bit"}}, "bitsandbytes"),
        ([sft_row(1)], {"overrides": {"lr_scheduler_type": "cosine_with_min_lr"}}, "min_lr"),
        ([sft_row(1)], {"overrides": {"eval_on_start": "true"}}, "eval_on_start"),
    ],
)
def test_what_cannot_be_trained_raises_one_line_and_leaves_no_folder(
    tmp_path: Path, base: str, rows: Any, fields: dict[str, Any], culprit: str
) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ConfigError, match=culprit) as raised:
        sft(data, base, tmp_path / "out", train_config(**fields))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()
