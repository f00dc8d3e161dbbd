"""Reading recipes: stages, references, overrides, and mistakes that are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.errors import ConfigError
from ludus.recipe.recipe_file import Recipe, read_recipe, shipped_recipes, substitute

LOOP = """
description = "A loop"
next = ["ludus show {collect}"]

[defaults]
env = "wordle"

[collect]
num_episodes = 5
task = { difficulty = 2 }

[warm-up]
command = "sft"
data = "{collect}"

[eval]
candidate = { base = "smollm2", sft = "{warm-up}" }
"""


def read(folder: Path, text: str, *overrides: str) -> Recipe:
    (folder / "loop.toml").write_text(text)
    return read_recipe(str(folder / "loop.toml"), overrides=overrides)


def test_stages_are_read_in_order_with_the_stages_that_they_name(tmp_path: Path) -> None:
    recipe = read(tmp_path, LOOP)
    assert recipe.name == "loop" and recipe.output_dir == Path("runs/loop")
    assert [(stage.name, stage.command) for stage in recipe.stages] == [
        ("collect", "collect"),
        ("warm-up", "sft"),
        ("eval", "eval"),
    ]
    assert [stage.inputs for stage in recipe.stages] == [(), ("collect",), ("warm-up",)]
    assert recipe.defaults == {"env": "wordle"}
    assert recipe.next_commands == ("ludus show {collect}",)


def test_references_are_replaced_also_within_texts_and_tables() -> None:
    value = {"sft": "hf:{sft}", "runs": ["{collect}"], "json": '{"a": 1}', "n": 3}
    assert substitute(value, {"sft": "out/sft", "collect": "out/collect"}) == {
        "sft": "hf:out/sft",
        "runs": ["out/collect"],
        "json": '{"a": 1}',
        "n": 3,
    }


def test_double_braces_are_text(tmp_path: Path) -> None:
    text = "[collect]\nsystem_prompt = 'Reply with {{answer}}.'\n[sft]\ndata = '{collect}'"
    collect, sft = read(tmp_path, text).stages
    assert (collect.inputs, sft.inputs) == ((), ("collect",))
    assert substitute(collect.options, {"answer": "no"})["system_prompt"] == "Reply with {answer}."


def test_overrides_are_toml_values_or_else_texts(tmp_path: Path) -> None:
    recipe = read(
        tmp_path,
        LOOP,
        *("collect.num_episodes=7", "collect.task.difficulty=3", "collect.model=Qwen/Qwen3-0.6B"),
        'eval.candidate=["oracle"]',
    )
    collect, _, evaluation = recipe.stages
    assert collect.options["num_episodes"] == 7 and collect.options["task"] == {"difficulty": 3}
    assert collect.options["model"] == "Qwen/Qwen3-0.6B"
    assert evaluation.options["candidate"] == ["oracle"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[collect", "TOML"),
        ("", "no stages"),
        ("descripton = 'x'\n[collect]", "'description'"),
        ("next = 'x'\n[collect]", "'next'"),
        ("[sft]\ndata = '{colect}'\n[collect]", "{colect}"),
        ("[sft]\ndata = '{collect}'\n[collect]", "comes later"),
        ("[collect]\n[sft]\ndata = '{colect}'", "'collect'"),
        ("[earlier]\ncommand = 'sft'", "'earlier'"),
        ("[defaults]\nmodel = '{sft}'\n[sft]", "defaults"),
        ("[collect]\nsystem_prompt = 'Reply with {answer}.'", "{{answer}}"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("colect.seed=1", "'collect'"),
        ("collect=1", "STAGE.KEY=VALUE"),
        ("collect.seed", "STAGE.KEY=VALUE"),
        ("collect.num_episodes.x=1", "'num_episodes'"),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, LOOP, override)
    assert words in str(raised.value)


def test_a_file_that_is_missing_brings_up_similar_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'quickstart'"):
        read_recipe("quikstart")
    (tmp_path / "mine.toml").touch()
    with pytest.raises(ConfigError, match=r"mine\.toml"):
        read_recipe(str(tmp_path / "mime.toml"))


def test_recipes_ship_with_a_description_and_commands_to_go_further() -> None:
    names = {"quickstart", "chain-sum", "wordle", "multi-env", "offline-dpo"}
    assert {*shipped_recipes()} == names
    for name in names:
        recipe = read_recipe(name)
        assert recipe.description and len(recipe.next_commands) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[collect]]\nenv = "wordle"\n', "single brackets"),
        ('[earlier]\ncommand = "collect"\n', "set aside"),
        ('["a b"]\ncommand = "collect"\n', "letters"),
    ],
)
def test_a_table_that_cannot_be_a_stage_is_explained(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_recipe(str(tmp_path / "r.toml"))


@pytest.mark.parametrize(
    "value", ["a = " + "[" * 3000 + "]" * 3000, ".".join("a" * 3000) + " = 1", "#" * 1_000_001]
)
def test_files_that_are_nested_too_deeply_or_too_long_are_refused(
    tmp_path: Path, value: str
) -> None:
    with pytest.raises(ConfigError, match=r"loop\.toml"):
        read(tmp_path, f"[collect]\n{value}\n")


def test_an_endless_device_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="characters"):
        read_recipe(str(tmp_path / "zero.toml"))
