"""The record of a run, `training.json`, and its log, `log.jsonl`."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ludus.data.jsonable import to_jsonable
from ludus.data.training_log import append_log, logged_values, read_log, truncate_log
from ludus.data.versions import versions
from ludus.errors import RunError
from ludus.train.output.metadata import config_json, device_names, file_digest
from ludus.train.output.record import check_same_run, create_record, finish_record, read_record
from ludus.train.output.record_schema import FinalMetrics, rename_settings
from train.records import FIGURES, about


def test_a_record_round_trips(tmp_path: Path) -> None:
    started = create_record(tmp_path, about())
    assert started == read_record(tmp_path) and started.figures is None
    finished = finish_record(tmp_path, FIGURES)
    assert finished == read_record(tmp_path) == started.model_copy(update={"figures": FIGURES})
    assert [file.name for file in tmp_path.iterdir()] == ["training.json"], "no draft is left"


def test_a_record_is_json_with_version_date_and_packages(tmp_path: Path) -> None:
    create_record(tmp_path, about())
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["version"] == 1 and record["model"] == "smollm2"
    assert record["versions"].keys() >= {"ludus", "python", "torch", "transformers", "trl"}
    assert record["created_at"].endswith("+00:00")


def test_settings_of_earlier_versions_are_read_under_their_new_names(tmp_path: Path) -> None:
    lora = {"rank": 8, "alpha": None, "dropout": 0.0, "targets": ["q_proj"], "merge": False}
    old = {**about()["settings"], "accumulate": 2, "drop": True, "lora": lora}
    new = {**about()["settings"], "gradient_accumulation_steps": 2, "drop_untrainable": True}
    new["lora"] = {
        "rank": 8, "alpha": None, "dropout": 0.0, "target_modules": ["q_proj"],
        "merge_adapter": False,
    }  # fmt: skip
    create_record(tmp_path, about())
    file = tmp_path / "training.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"settings": old}))
    record = read_record(tmp_path)
    assert record is not None and record.settings == new
    check_same_run(tmp_path, about(settings=new))


def test_grpo_settings_of_earlier_versions_are_read_under_their_new_names() -> None:
    old = {"equal": "skip", "resamples": 2, "vllm": None, "rewards": ["m:f"], "steps": 3}
    assert rename_settings(old) == {
        "zero_variance_groups": "skip", "max_resamples": 2, "vllm_mode": None,
        "reward_funcs": ["m:f"], "steps": 3,
    }  # fmt: skip


def test_without_a_record_nothing_is_read_and_nothing_can_be_finished(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    with pytest.raises(RunError, match=r"training\.json"):
        finish_record(tmp_path, FIGURES)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "JSON"),
        ("{}", "kind"),
        ('{"version": 2}', "version 2"),
    ],
)
def test_an_invalid_record_raises_one_line(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text(text)
    with pytest.raises(RunError, match=reason) as caught:
        read_record(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_resumed_run_keeps_its_date_and_the_steps_it_resumed_from(tmp_path: Path) -> None:
    first = create_record(tmp_path, about())
    create_record(tmp_path, about(), resumed_from=10)
    again = create_record(tmp_path, about(devices=("cuda", "cuda")), resumed_from=25)
    assert (again.created_at, again.resumed_from) == (first.created_at, (10, 25))
    assert create_record(tmp_path, about()).resumed_from == (), "this one started anew"


def test_the_base_model_is_known_by_its_name_or_its_own_record(tmp_path: Path) -> None:
    def origin(model: str) -> tuple[str | None, str | None]:
        record = create_record(tmp_path, about(base=None, license=None, model=model))
        return record.base, record.license

    smollm2 = "HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"
    assert origin("Qwen/Qwen3-0.6B") == ("Qwen/Qwen3-0.6B", None)
    assert origin("./models/x") == origin("/models/x") == origin(str(tmp_path)) == (None, None)
    assert origin("smollm2") == smollm2
    assert origin(str(tmp_path)) == smollm2, "the model was itself trained from smollm2"


def test_only_a_run_with_the_same_decisive_settings_is_the_same(tmp_path: Path) -> None:
    check_same_run(tmp_path, about())
    create_record(tmp_path, about())
    check_same_run(tmp_path, about())
    elsewhere = {**about()["settings"], "device": "cuda"}
    moved = {**about()["data"], "path": "copies/wordle"}
    check_same_run(tmp_path, about(settings=elsewhere, data=moved))
    logged = {**about()["settings"], "overrides": {"logging_steps": "5"}}
    check_same_run(tmp_path, about(settings=logged))
    for changed, difference in (
        (about(model="other"), 'model: .*"smollm2".*"other"'),
        (about(data={**about()["data"], "digest": "cd" * 32}), r"data\.digest: .*abab.*cdcd"),
        (about(settings={**about()["settings"], "epochs": 4}), "epochs: 3 .*4"),
        (about(settings={**logged, "overrides": {"optim": "sgd"}}), "optim: .*sgd"),
    ):
        with pytest.raises(RunError, match=difference) as caught:
            check_same_run(tmp_path, changed)
        assert "`overwrite`" in str(caught.value) and "\n" not in str(caught.value)


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    create_record(tmp_path, about())
    record = finish_record(
        tmp_path, FinalMetrics(steps=3, last_loss=float("nan"), first_loss=float("inf"))
    )
    assert record.figures == FinalMetrics(steps=3)
    append_log(tmp_path, {"step": 1, "loss": float("nan")})
    assert list(read_log(tmp_path)) == [{"step": 1, "loss": None}]


def log_steps(out: Path, *steps: int) -> list[dict[str, Any]]:
    lines = [{"step": step, "loss": 1 / step} for step in steps]
    for line in lines:
        append_log(out, line)
    return lines


def test_a_log_round_trips(tmp_path: Path) -> None:
    assert list(read_log(tmp_path)) == []
    assert log_steps(tmp_path, 1, 2, 3) == list(read_log(tmp_path))


@pytest.mark.parametrize("torn", [b'{"step": 4, "lo', b'{"step": 4}', b"\0\0"])
def test_a_torn_last_line_is_skipped_and_overwritten(torn: bytes, tmp_path: Path) -> None:
    log_steps(tmp_path, 1, 2, 3)
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(torn)
    log_steps(tmp_path, 4, 5)
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2, 3, 4, 5]
    assert [line["loss"] for line in read_log(tmp_path)][3:] == [1 / 4, 1 / 5]


def test_truncating_a_log_drops_the_lines_after_a_step(tmp_path: Path) -> None:
    log_steps(tmp_path, 1, 2, 3, 4)
    append_log(tmp_path, {"step": 4, "eval_loss": 0.5})
    truncate_log(tmp_path, 2)
    log_steps(tmp_path, 3)
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2, 3]
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]


def test_truncating_a_log_to_the_start_leaves_it_empty(tmp_path: Path) -> None:
    truncate_log(tmp_path, 0)
    assert (tmp_path / "log.jsonl").read_bytes() == b""


def test_logged_values_are_those_of_one_metric() -> None:
    log: list[dict[str, Any]] = [
        {"step": 1, "loss": 2.0},
        {"step": 1, "eval_loss": 3.0},
        {"step": 2, "loss": None},
    ]
    assert logged_values(log) == [(1, 2.0)] and logged_values(log, "eval_loss") == [(1, 3.0)]


def test_the_config_is_complete_without_secrets_and_local_paths(tmp_path: Path) -> None:
    from trl import SFTConfig

    folder = tmp_path / "checkpoints"
    config = SFTConfig(output_dir=str(folder), hub_token="hf_secret", use_cpu=True, bf16=False)
    fields = config_json(config)
    assert fields["learning_rate"] == config.learning_rate and fields["packing"] is False
    assert fields["lr_scheduler_type"] == "linear" and len(fields) > 100
    text = json.dumps(fields, allow_nan=False)
    assert "hf_secret" not in text and str(tmp_path) not in text and "hub_token" not in fields


def test_values_that_json_cannot_hold_become_the_name_of_their_type() -> None:
    class Strange:
        pass

    assert to_jsonable({"a": Strange(), "b": {3, 1}, "c": Path("x"), 1: (float("inf"),)}) == {
        "a": "Strange",
        "b": [1, 3],
        "c": "x",
        "1": [None],
    }


def test_a_scalar_tensor_becomes_a_number() -> None:
    import torch

    assert to_jsonable(torch.tensor(0.5)) == 0.5


def test_the_digest_is_the_sha256_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one" * 500_000)
    (tmp_path / "b").write_bytes(b"two")
    assert file_digest(tmp_path / "a") == sha256(b"one" * 500_000).hexdigest()
    assert (
        file_digest(tmp_path / "a", tmp_path / "b") == sha256(b"one" * 500_000 + b"two").hexdigest()
    )


def test_versions_and_devices_are_named() -> None:
    import torch

    assert torch.__version__.startswith(versions("torch")["torch"].partition("+")[0])
    assert len(device_names("cpu", 2)) == 2 and device_names("cpu")[0].startswith("cpu")
