"""`training.json` and `log.jsonl`: what a run leaves to read."""

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
from ludus.train.output.record_schema import FinalMetrics
from train.records import FIGURES, about


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    begun = create_record(tmp_path, about())
    assert begun == read_record(tmp_path) and begun.figures is None
    done = finish_record(tmp_path, FIGURES)
    assert done == read_record(tmp_path) == begun.model_copy(update={"figures": FIGURES})
    assert [file.name for file in tmp_path.iterdir()] == ["training.json"], "no draft is left"


def test_a_file_is_read_by_people_too(tmp_path: Path) -> None:
    create_record(tmp_path, about())
    found = json.loads((tmp_path / "training.json").read_text())
    assert found["version"] == 1 and found["model"] == "smollm2"
    assert found["versions"].keys() >= {"ludus", "python", "torch", "transformers", "trl"}
    assert found["created_at"].endswith("+00:00")


def test_where_there_is_none_nothing_is_read_and_nothing_can_be_finished(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    with pytest.raises(RunError, match=r"there is no training\.json"):
        finish_record(tmp_path, FIGURES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("{}", "kind: Field required"),
        ('{"version": 2}', "of version 2.*newer Ludus"),
    ],
)
def test_a_file_that_is_no_record_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text(text)
    with pytest.raises(RunError, match=words) as caught:
        read_record(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_run_that_goes_on_keeps_its_date_and_remembers_where(tmp_path: Path) -> None:
    first = create_record(tmp_path, about())
    create_record(tmp_path, about(), resumed_from=10)
    again = create_record(tmp_path, about(devices=("cuda", "cuda")), resumed_from=25)
    assert (again.created_at, again.resumed_from) == (first.created_at, (10, 25))
    assert create_record(tmp_path, about()).resumed_from == (), "this one began anew"


def test_where_a_model_comes_from_is_known_by_its_name_or_its_own_record(tmp_path: Path) -> None:
    def origin(model: str) -> tuple[str | None, str | None]:
        training = create_record(tmp_path, about(base=None, license=None, model=model))
        return training.base, training.license

    smollm2 = "HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"
    assert origin("Qwen/Qwen3-0.6B") == ("Qwen/Qwen3-0.6B", None)
    assert origin("./models/x") == origin("/models/x") == origin(str(tmp_path)) == (None, None)
    assert origin("smollm2") == smollm2
    assert origin(str(tmp_path)) == smollm2, "a second training begins where the first one ended"


def test_a_run_goes_on_with_the_same_settings_only(tmp_path: Path) -> None:
    check_same_run(tmp_path, about())
    create_record(tmp_path, about())
    check_same_run(tmp_path, about())
    elsewhere = {**about()["settings"], "device": "cuda"}
    moved = {**about()["data"], "path": "copies/wordle"}
    check_same_run(tmp_path, about(settings=elsewhere, data=moved))
    logged = {**about()["settings"], "overrides": {"logging_steps": "5"}}
    check_same_run(tmp_path, about(settings=logged))
    for changed, words in (
        (about(model="other"), 'model: "smollm2" there, "other" here'),
        (about(data={**about()["data"], "digest": "cd" * 32}), r"data\.digest: .*abab.*cdcd"),
        (about(settings={**about()["settings"], "epochs": 4}), "epochs: 3 there, 4 here"),
        (about(settings={**logged, "overrides": {"optim": "sgd"}}), "optim: .*sgd"),
    ):
        with pytest.raises(RunError, match=words) as caught:
            check_same_run(tmp_path, changed)
        assert "--overwrite" in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    create_record(tmp_path, about())
    done = finish_record(
        tmp_path, FinalMetrics(steps=3, last_loss=float("nan"), first_loss=float("inf"))
    )
    assert done.figures == FinalMetrics(steps=3)
    append_log(tmp_path, {"step": 1, "loss": float("nan")})
    assert list(read_log(tmp_path)) == [{"step": 1, "loss": None}]


def logged(out: Path, *steps: int) -> list[dict[str, Any]]:
    found = [{"step": step, "loss": 1 / step} for step in steps]
    for line in found:
        append_log(out, line)
    return found


def test_the_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert list(read_log(tmp_path)) == []
    assert logged(tmp_path, 1, 2, 3) == list(read_log(tmp_path))


@pytest.mark.parametrize("torn", [b'{"step": 4, "lo', b'{"step": 4}', b"\0\0"])
def test_a_torn_last_line_is_passed_over_and_written_over(torn: bytes, tmp_path: Path) -> None:
    logged(tmp_path, 1, 2, 3)
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(torn)
    logged(tmp_path, 4, 5)
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2, 3, 4, 5]
    assert [line["loss"] for line in read_log(tmp_path)][3:] == [1 / 4, 1 / 5]


def test_rewinding_drops_what_was_logged_after_the_checkpoint(tmp_path: Path) -> None:
    logged(tmp_path, 1, 2, 3, 4)
    append_log(tmp_path, {"step": 4, "eval_loss": 0.5})
    truncate_log(tmp_path, 2)
    logged(tmp_path, 3)
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2, 3]
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]


def test_rewinding_to_the_start_leaves_an_empty_log(tmp_path: Path) -> None:
    truncate_log(tmp_path, 0)
    assert (tmp_path / "log.jsonl").read_bytes() == b""


def test_losses_are_told_apart() -> None:
    log: list[dict[str, Any]] = [
        {"step": 1, "loss": 2.0},
        {"step": 1, "eval_loss": 3.0},
        {"step": 2, "loss": None},
    ]
    assert logged_values(log) == [(1, 2.0)] and logged_values(log, "eval_loss") == [(1, 3.0)]


def test_a_trainers_config_is_whole_and_holds_no_secret_and_no_place(tmp_path: Path) -> None:
    from trl import SFTConfig

    place = tmp_path / "checkpoints"
    config = SFTConfig(output_dir=str(place), hub_token="hf_secret", use_cpu=True, bf16=False)
    found = config_json(config)
    assert found["learning_rate"] == config.learning_rate and found["packing"] is False
    assert found["lr_scheduler_type"] == "linear" and len(found) > 100
    text = json.dumps(found, allow_nan=False)
    assert "hf_secret" not in text and str(tmp_path) not in text and "hub_token" not in found


def test_what_json_does_not_know_is_named_by_its_type() -> None:
    class Strange:
        pass

    assert to_jsonable({"a": Strange(), "b": {3, 1}, "c": Path("x"), 1: (float("inf"),)}) == {
        "a": "Strange",
        "b": [1, 3],
        "c": "x",
        "1": [None],
    }


def test_a_number_of_torch_is_a_number() -> None:
    import torch

    assert to_jsonable(torch.tensor(0.5)) == 0.5


def test_the_digest_is_what_sha256sum_says(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one" * 500_000)
    (tmp_path / "b").write_bytes(b"two")
    assert file_digest(tmp_path / "a") == sha256(b"one" * 500_000).hexdigest()
    assert (
        file_digest(tmp_path / "a", tmp_path / "b") == sha256(b"one" * 500_000 + b"two").hexdigest()
    )


def test_versions_and_devices_are_told() -> None:
    import torch

    assert torch.__version__.startswith(versions("torch")["torch"].partition("+")[0])
    assert len(device_names("cpu", 2)) == 2 and device_names("cpu")[0].startswith("cpu")
