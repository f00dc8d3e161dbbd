"""The model card: metadata, tables, and code that runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from policy.models import adapted, saved

from ludus.train.output.model_card import build_model_card
from ludus.train.output.record import TrainingRecord, create_record, finish_record
from train.sample_records import METRICS, record_fields

ADAPTER = {
    "rank": 8, "alpha": None, "dropout": 0.0, "target_modules": ["q_proj"],
    "merge_adapter": False,
}  # fmt: skip


def finished_record(folder: Path, **changes: Any) -> TrainingRecord:
    folder.mkdir(exist_ok=True)
    create_record(folder, record_fields(**changes))
    return finish_record(folder, METRICS)


def test_front_matter_names_base_model_license_and_library(tmp_path: Path) -> None:
    metadata = vars(ModelCard(build_model_card(finished_record(tmp_path), name="ada/wordle")).data)
    assert metadata["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (metadata["library_name"], metadata["pipeline_tag"]) == (
        "transformers",
        "text-generation",
    )
    assert metadata["license"] == "apache-2.0" and {"ludus", "trl", "sft"} <= {*metadata["tags"]}


def test_unknown_values_are_left_out(tmp_path: Path) -> None:
    unknown = finished_record(tmp_path, base=None, license=None, model="./mine", command=None)
    text = build_model_card(unknown, name="ada/wordle")
    metadata = vars(ModelCard(text).data)
    assert metadata["base_model"] is None and metadata["license"] is None
    assert "None" not in text and "null" not in text


def test_metrics_config_command_and_versions_are_in_the_card(tmp_path: Path) -> None:
    record = finished_record(tmp_path)
    text = build_model_card(record, name="ada/wordle")
    for value in ("1,234,567", "2.414", "0.3125", "12,961", "3.0 GiB", "`0.0002`", "40 rows"):
        assert f"| {value} |" in text
    assert record.command and record.command in text
    assert f"trl {record.versions['trl']}" in text and "(loss.png)" in text
    assert "320 conversations" in text
    assert "loss.png" not in build_model_card(record, name="ada/wordle", plot=False)


def test_a_run_that_is_not_finished_has_no_metrics(tmp_path: Path) -> None:
    assert "Tokens per second" not in build_model_card(
        create_record(tmp_path, record_fields()), name="x"
    )


def test_markdown_in_values_is_escaped(tmp_path: Path) -> None:
    evil = "x`y|z\n---\ntags: []"
    data = {**record_fields()["data"], "path": evil, "truncated": 7}
    command = "ludus train sft ```\n# head"
    text = build_model_card(
        finished_record(tmp_path, model=evil, data=data, command=command), name=evil
    )
    assert vars(ModelCard(text).data)["pipeline_tag"] == "text-generation"
    assert [line for line in text.splitlines() if line.startswith("# ")].count("# head") == 1
    assert "| 7 rows |" in text
    assert "````bash\nludus train sft ```\n# head\n````" in text


def python_code(text: str) -> str:
    """The Python code of a card."""
    match = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)
    assert match is not None
    return match[1]


def test_the_example_code_runs(tmp_path: Path, capsys: Any) -> None:
    model = saved(tmp_path / "model")
    exec(python_code(build_model_card(finished_record(tmp_path / "run"), name=str(model))), {})
    assert capsys.readouterr().out.strip()


def test_commands_name_the_environment_and_task_of_the_rows(tmp_path: Path) -> None:
    task = {"dataset_config": {"max_terms": 3}}
    data = {**record_fields()["data"], "environments": {"wordle": 240, "catch": 80}, "task": task}
    text = build_model_card(finished_record(tmp_path / "rows", data=data), name="ada/x")
    words = 'wordle=0.75,catch=0.25 --task \'{"dataset_config": {"max_terms": 3}}\''
    assert f"ludus eval {words} --candidate smollm2 --candidate ada/x -n 100" in text
    assert "ENV" not in text and "`wordle` (240 rows), `catch` (80 rows)" in text


def test_commands_name_the_environment_and_task_of_grpo(tmp_path: Path) -> None:
    environment = {"spec": "wordle", "names": ["wordle"]}
    settings = {**record_fields()["settings"], "task": {"length": 6}, "system_prompt": None}
    record = finished_record(
        tmp_path, kind="grpo", data=None, environment=environment, settings=settings
    )
    words = "ludus collect wordle --task '{\"length\": 6}' --system-prompt '' --agent hf:"
    assert words in build_model_card(record, name="ada/x")


def test_without_an_environment_commands_have_a_placeholder(tmp_path: Path) -> None:
    assert "ludus eval ENV --candidate" in build_model_card(finished_record(tmp_path), name="ada/x")


def test_an_adapter_for_smollm2_is_loaded_by_ludus(tmp_path: Path, capsys: Any) -> None:
    base = saved(tmp_path / "base")
    folder = adapted(tmp_path / "adapter", base)
    settings = {**record_fields()["settings"], "lora": ADAPTER}
    text = build_model_card(finished_record(tmp_path / "run", settings=settings), name=str(folder))
    assert "`smollm2`" in text and "AutoPeft" not in text
    exec(python_code(text), {})
    assert capsys.readouterr().out.strip()


def test_an_adapter_is_loaded_with_peft(tmp_path: Path, capsys: Any) -> None:
    base = saved(tmp_path / "base")
    folder = adapted(tmp_path / "adapter", base)
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    settings = {**record_fields()["settings"], "lora": ADAPTER}
    text = build_model_card(
        finished_record(tmp_path / "run", settings=settings, model="./x"), name=str(folder)
    )
    metadata = vars(ModelCard(text).data)
    assert (metadata["library_name"], metadata["base_model_relation"]) == ("peft", "adapter")
    assert "rank 8, alpha 16, on q_proj, " in text and "not merged" in text
    exec(python_code(text), {})
    assert capsys.readouterr().out.strip()
