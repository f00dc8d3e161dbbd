"""The record of a run, `training.json`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ludus.data.run_folder import versions
from ludus.data.training_log import append_log, read_log
from ludus.errors import RunError
from ludus.train.output.record import FinalMetrics, create_record, finish_record, read_record
from train.sample_records import METRICS, record_fields


def test_a_record_round_trips(tmp_path: Path) -> None:
    started = create_record(tmp_path, record_fields())
    assert started == read_record(tmp_path) and started.metrics is None
    finished = finish_record(tmp_path, METRICS)
    assert finished == read_record(tmp_path) == started.model_copy(update={"metrics": METRICS})
    assert [file.name for file in tmp_path.iterdir()] == ["training.json"], "no draft is left"


def test_a_record_is_json_with_version_date_and_packages(tmp_path: Path) -> None:
    create_record(tmp_path, record_fields())
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["version"] == 1 and record["model"] == "smollm2"
    assert record["versions"].keys() >= {"ludus", "python", "torch", "transformers", "trl"}
    assert record["created_at"].endswith("+00:00")


def test_without_a_record_nothing_is_read_and_nothing_can_be_finished(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    with pytest.raises(RunError, match=r"training\.json"):
        finish_record(tmp_path, METRICS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "JSON"),
        ("{}", "kind"),
        ('{"version": 2}', "version"),
    ],
)
def test_an_invalid_record_raises_one_line(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text(text)
    with pytest.raises(RunError, match=reason) as caught:
        read_record(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_resumed_run_keeps_its_date_and_the_steps_it_resumed_from(tmp_path: Path) -> None:
    first = create_record(tmp_path, record_fields())
    create_record(tmp_path, record_fields(), resumed_from=10)
    again = create_record(tmp_path, record_fields(devices=("cuda", "cuda")), resumed_from=25)
    assert (again.created_at, again.resumed_from) == (first.created_at, (10, 25))
    assert create_record(tmp_path, record_fields()).resumed_from == (), "this one started anew"


def test_the_base_model_is_known_by_its_name_or_its_own_record(tmp_path: Path) -> None:
    def origin(model: str) -> tuple[str | None, str | None]:
        record = create_record(tmp_path, record_fields(base=None, license=None, model=model))
        return record.base, record.license

    smollm2 = "HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"
    assert origin("Qwen/Qwen3-0.6B") == ("Qwen/Qwen3-0.6B", None)
    assert origin("./models/x") == origin("/models/x") == origin(str(tmp_path)) == (None, None)
    assert origin("smollm2") == smollm2
    assert origin(str(tmp_path)) == smollm2, "the model was itself trained from smollm2"


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    create_record(tmp_path, record_fields())
    record = finish_record(
        tmp_path, FinalMetrics(steps=3, last_loss=float("nan"), first_loss=float("inf"))
    )
    assert record.metrics == FinalMetrics(steps=3)
    append_log(tmp_path, {"step": 1, "loss": float("nan")})
    assert list(read_log(tmp_path)) == [{"step": 1, "loss": None}]


def test_versions_are_named() -> None:
    import torch

    assert torch.__version__.startswith(versions("torch")["torch"].partition("+")[0])
