"""Options of stages come from the declarations of the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ludus.cli.commands import STAGES
from ludus.cli.flags import find_command, flags_of
from ludus.cli.recipe_stages import (
    MANAGED_KEYS,
    apply_defaults,
    check_options,
    check_recipe,
    stage_command,
)
from ludus.errors import ConfigError
from ludus.recipe.recipe_file import Recipe, Stage

MANAGED = {"output_dir", "output", "out", "overwrite", "resume", "json", "config"}


def words(command: str, **options: Any) -> list[str]:
    stage = Stage("it", command, options)
    return stage_command(stage).arguments(stage, {"it": Path("out/it"), "sft": Path("out/sft")})


@pytest.mark.parametrize("name", STAGES)
def test_every_option_of_a_command_is_a_key(name: str) -> None:
    flags = flags_of(find_command(STAGES[name]))
    assert {*stage_command(Stage("it", name, {})).options} == {*flags} - {*MANAGED_KEYS}
    assert {key for key in MANAGED_KEYS if key in flags} <= MANAGED


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("collect", {"env": "wordle"}),
        ("curate", {"runs": ["runs/it"]}),
        ("sft", {"data": "data", "model": "smollm2"}),
        ("dpo", {"data": "data", "model": "smollm2"}),
        ("tutor", {"env": "wordle", "model": "smollm2"}),
        ("grpo", {"env": "wordle", "model": "smollm2"}),
        ("eval", {"env": "wordle", "candidate": "oracle"}),
        ("report", {"sources": ["run"]}),
        ("push env", {"spec": "wordle", "repo_id": "ada/it"}),
        ("push dataset", {"source": "run", "repo_id": "ada/it"}),
        ("push model", {"model": "model", "repo_id": "ada/it"}),
    ],
)
def test_every_command_can_check_its_options_without_running(
    command: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    recipe = Recipe("loop", "", Path("out"), (Stage("it", command, options),), {}, ())
    assert check_options(recipe, check_recipe(recipe)) == {}
    assert not [*tmp_path.iterdir()]


def test_values_become_words() -> None:
    # Arguments come first and in their own order; a table is KEY=VALUE, or JSON if that differs.
    assert words("eval", candidate={"base": "smollm2", "sft": "hf:{sft}"}, env="wordle") == [
        *("eval", "wordle", "--candidate", "base=smollm2", "--candidate", "sft=hf:out/sft"),
        *("--output-dir", "out/it"),
    ]
    assert words("collect", env="wordle", task={"a": [1]})[2:4] == ["--task", "a=[1]"]
    assert words("collect", env="wordle", task={"a": "1"})[2:4] == ["--task", '{"a": "1"}']
    assert words("collect", env="wordle", task={"a": 1})[2:4] == ["--task", "a=1"]
    assert words("collect", env="wordle", task=["a=1", "b=2"])[2:6] == [
        *("--task", "a=1", "--task", "b=2"),
    ]
    assert words("collect", env="wordle", system_prompt="-x")[2] == "--system-prompt=-x"
    assert words("curate", runs=["a", "b"], dedupe=False)[1:4] == ["a", "b", "--no-dedupe"]
    assert words("sft", data="d", set={"warmup_steps": 3})[3:5] == ["--set", "warmup_steps=3"]
    assert words("push env", repo_id="ada/wordle", spec="wordle")[:4] == [
        *("push", "env", "wordle", "ada/wordle"),
    ]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("curate", {"runs": ["a"], "dedupe": "perhaps"}),
        ("sft", {"data": "d", "model": "m", "steps": [1, 2]}),
        ("sft", {"data": "d", "model": "m", "steps": {"a": 1}}),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(command: str, options: dict[str, Any]) -> None:
    recipe = Recipe("loop", "", Path("out"), (Stage("it", command, options),), {}, ())
    with pytest.raises(ConfigError, match=[*options][-1]):
        check_options(recipe, check_recipe(recipe))


def test_defaults_go_to_the_stages_that_have_the_option() -> None:
    stages = (
        Stage("collect", "collect", {"seed": 3}),
        Stage("curate", "curate", {"runs": ["{collect}"]}),
    )
    defaults = {"env": "wordle", "seed": 1}
    recipe = apply_defaults(Recipe("loop", "", Path("out"), stages, defaults, ()))
    assert recipe.stages[0].options == {"env": "wordle", "seed": 3}
    assert recipe.stages[1].options == {"seed": 1, "runs": ["{collect}"]}
