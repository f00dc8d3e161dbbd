"""The card of a trained model: what it says is so, and what it shows runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from policy.models import adapted, saved

from ludus.train.output.model_card import build_model_card
from ludus.train.output.record import create_record, finish_record
from ludus.train.output.record_schema import TaskExample, TrainingRecord
from train.records import FIGURES, about

ADAPTER = {"rank": 8, "alpha": None, "dropout": 0.0, "targets": ["q_proj"], "merge": False}


EXAMPLE = TaskExample(
    messages=(
        {"role": "system", "content": 'Call a "tool".\nNothing else.'},
        {"role": "user", "content": "State the sum: 264 - 440 ="},
    ),
    tools=(
        {
            "type": "function",
            "function": {
                "name": "submit_sum",
                "description": "Submit the sum, and nothing else than the sum, to whoever asked.",
                "parameters": {
                    "type": "object",
                    "properties": {"sum": {"type": "integer", "readOnly": False}},
                },
            },
        },
    ),
)


def trained(folder: Path, **changes: Any) -> TrainingRecord:
    folder.mkdir(exist_ok=True)
    create_record(folder, about(**changes))
    return finish_record(folder, FIGURES, EXAMPLE)


def test_the_hub_learns_what_it_is_and_what_it_was_made_from(tmp_path: Path) -> None:
    told = vars(ModelCard(build_model_card(trained(tmp_path), name="ada/wordle")).data)
    assert told["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (told["library_name"], told["pipeline_tag"]) == ("transformers", "text-generation")
    assert told["license"] == "apache-2.0" and {"ludus", "trl", "sft"} <= {*told["tags"]}


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    unknown = trained(tmp_path, base=None, license=None, model="./mine", command=None)
    text = build_model_card(unknown, name="ada/wordle")
    told = vars(ModelCard(text).data)
    assert told["base_model"] is None and told["license"] is None
    assert "None" not in text and "null" not in text


def test_figures_settings_command_and_versions_are_told(tmp_path: Path) -> None:
    training = trained(tmp_path)
    text = build_model_card(training, name="ada/wordle")
    for row in (
        "| Steps | 120 |",
        "| Tokens | 1,234,567 |",
        "| Loss, first and last | 2.414 to 0.3125 |",
        "| Loss on the test split | 0.35 |",
        "| Tokens per second | 12,961 |",
        "| Peak memory | 3.0 GiB |",
        "| Learning rate | `0.0002` |",
        "| Packing | yes |",
        "| Test split | 40 rows |",
    ):
        assert row in text
    assert training.command and training.command in text
    assert f"trl {training.versions['trl']}" in text and "![Loss over steps](loss.png)" in text
    assert "on 320 conversations, with Ludus" in text and "came from Ludus" in text
    assert "loss.png" not in build_model_card(training, name="ada/wordle", plot=False)


def test_before_the_end_there_are_no_figures(tmp_path: Path) -> None:
    assert "## Figures" not in build_model_card(create_record(tmp_path, about()), name="x")


def test_words_from_outside_do_not_break_it(tmp_path: Path) -> None:
    evil = "x`y|z\n---\ntags: []"
    data = {**about()["data"], "path": evil, "cut": 7}
    command = "ludus train sft ```\n# head"
    text = build_model_card(trained(tmp_path, model=evil, data=data, command=command), name=evil)
    assert vars(ModelCard(text).data)["pipeline_tag"] == "text-generation"
    assert [line for line in text.splitlines() if line.startswith("# ")].count("# head") == 1
    assert "| Cut at the end | 7 rows |" in text
    assert "````bash\nludus train sft ```\n# head\n````" in text


def shown(text: str) -> str:
    """The Python code of a card."""
    found = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_code_that_it_shows_runs(tmp_path: Path, capsys: Any) -> None:
    model, names = saved(tmp_path / "model"), dict[str, Any]()
    exec(shown(build_model_card(trained(tmp_path / "run"), name=str(model))), names)
    assert capsys.readouterr().out.strip()
    assert tuple(names["messages"]) == EXAMPLE.messages and tuple(names["tools"]) == EXAMPLE.tools


def test_commands_name_the_environment_and_task_of_the_rows(tmp_path: Path) -> None:
    task = {"dataset_config": {"max_terms": 3}}
    data = {**about()["data"], "environments": {"wordle": 240, "catch": 80}, "task": task}
    text = build_model_card(trained(tmp_path / "rows", data=data), name="ada/x")
    words = 'wordle=0.75,catch=0.25 --task \'{"dataset_config": {"max_terms": 3}}\''
    assert f"ludus eval {words} --candidate smollm2 --candidate ada/x -n 100" in text
    assert "ENV" not in text and "`wordle` (240 rows), `catch` (80 rows)" in text


def test_commands_name_the_environment_and_task_of_a_trial(tmp_path: Path) -> None:
    played = {"spec": "wordle", "names": ["wordle"]}
    settings = {**about()["settings"], "task": {"length": 6}, "system_prompt": None}
    tried = trained(tmp_path, kind="grpo", data=None, environment=played, settings=settings)
    words = "ludus collect wordle --task '{\"length\": 6}' --system-prompt '' --provider hf"
    assert words in build_model_card(tried, name="ada/x")


def test_rows_that_name_no_environment_leave_it_to_the_reader(tmp_path: Path) -> None:
    assert "ludus eval ENV --candidate" in build_model_card(trained(tmp_path), name="ada/x")


def test_an_adapter_over_smollm2_is_loaded_by_ludus(tmp_path: Path, capsys: Any) -> None:
    base = saved(tmp_path / "base")
    folder = adapted(tmp_path / "adapter", base)
    settings = {**about()["settings"], "lora": ADAPTER}
    text = build_model_card(trained(tmp_path / "run", settings=settings), name=str(folder))
    assert "Its base is `smollm2`, which Ludus fetches" in text and "AutoPeft" not in text
    exec(shown(text), {})
    assert capsys.readouterr().out.strip()


def test_an_adapter_is_loaded_as_one(tmp_path: Path, capsys: Any) -> None:
    base = saved(tmp_path / "base")
    folder = adapted(tmp_path / "adapter", base)
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    settings = {**about()["settings"], "lora": ADAPTER}
    text = build_model_card(
        trained(tmp_path / "run", settings=settings, model="./x"), name=str(folder)
    )
    told = vars(ModelCard(text).data)
    assert (told["library_name"], told["base_model_relation"]) == ("peft", "adapter")
    assert "LoRA of rank 8, alpha 16, on q_proj, not merged" in text
    exec(shown(text), {})
    assert capsys.readouterr().out.strip()
