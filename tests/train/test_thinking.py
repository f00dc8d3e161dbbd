"""Training a model that thinks with thinking switched off: how it is asked goes with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from policy.conversations import ENDED, PLAYED
from policy.models import saved
from students import of_family

from ludus import episodes, grpo, sft
from ludus.errors import ConfigError, RunError
from ludus.policy.agent import PolicyAgent
from ludus.policy.chat.rendering import render
from ludus.policy.load import load
from ludus.train import Lora
from train.grpo.toy_environments import PICK, small_config
from train.lessons import dpo_row, quick, sft_data, write

OFF, ON = {"enable_thinking": False}, {"enable_thinking": True}
CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base"), of_family("qwen3")))


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, base: str) -> Path:
    """A model that was trained with thinking switched off."""
    folder = tmp_path_factory.mktemp("quiet")
    sft(sft_data(folder / "data", rows=2), base, folder / "out", quick(chat_template_kwargs=OFF))
    return folder / "out"


def told(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "training.json").read_text())
    return found


def prompts(out: Path) -> list[tuple[int, ...]]:
    found = [each.tokens for each in episodes(out / "episodes.jsonl")]
    return [tokens.ids[: tokens.mask.index(1)] for tokens in found if tokens is not None]


def test_a_model_is_recorded_and_saved_with_what_it_was_trained_with(quiet: Path) -> None:
    assert told(quiet)["settings"]["chat_template_kwargs"] == OFF
    assert told(quiet)["dialect"]["chat_template_kwargs"] == OFF
    assert "enable_thinking" in (quiet / "README.md").read_text()
    assert PolicyAgent(str(quiet)).describe()["chat_template_kwargs"] == OFF


def test_a_row_is_trained_on_as_it_is_asked_for(quiet: Path) -> None:
    policy = load(str(quiet), device="cpu")
    row = ENDED["messages"]
    whole = render(policy.tokenizer, row, ENDED["tools"], policy.chat_format.template)
    asked = render(
        policy.tokenizer,
        row[:-1],
        ENDED["tools"],
        policy.chat_format.template,
        add_generation_prompt=True,
    )
    assert asked.text.endswith(CLOSED) and whole.ids[: len(asked.ids)] == asked.ids


def test_another_training_inherits_it_unless_told_otherwise(quiet: Path, tmp_path: Path) -> None:
    data = sft_data(tmp_path / "data", rows=2)
    for name, given in (("as it was", {}), ("thinking", ON)):
        lora = Lora(rank=2, merge=False)
        settings = quick(chat_template_kwargs=given, lora=lora)
        sft(data, str(quiet), tmp_path / name, settings)
        assert told(tmp_path / name)["dialect"]["chat_template_kwargs"] == {**OFF, **given}
        adapted = PolicyAgent(str(tmp_path / name))
        assert adapted.describe()["chat_template_kwargs"] == {**OFF, **given}


def test_a_run_does_not_go_on_with_another_value(quiet: Path, base: str) -> None:
    data = quiet.parent / "data"
    with pytest.raises(RunError, match="chat_template_kwargs"):
        sft(data, base, quiet, quick(chat_template_kwargs=ON))


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_rows_with_thoughts_are_refused_where_none_are_asked_for(
    kind: str, base: str, tmp_path: Path
) -> None:
    from ludus import dpo

    row = dpo_row(1)
    row["chosen"][0]["reasoning_content"] = "Hm."
    write(tmp_path / "data" / "train.jsonl", [PLAYED if kind == "sft" else row])
    train = sft if kind == "sft" else dpo
    with pytest.raises(ConfigError, match=r"reasoning_content.*--no-reasoning") as refused:
        train(tmp_path / "data", base, tmp_path / "out", quick(chat_template_kwargs=OFF))
    assert "\n" not in str(refused.value)


def test_a_template_without_the_switch_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    model = saved(tmp_path / "model", of_family("qwen2_5"))
    data = sft_data(tmp_path / "data", rows=2)
    with pytest.raises(ConfigError, match="'enable_thinking'"):
        sft(data, str(model), tmp_path / "out", quick(chat_template_kwargs=OFF))
    with pytest.raises(ConfigError, match="'enable_thinking'"):
        grpo(PICK, str(model), tmp_path / "out", small_config(chat_template_kwargs=OFF))
    assert not (tmp_path / "out").exists()


def test_grpo_asks_alike_with_both_loops_and_saves_it(
    base: str, quiet: Path, tmp_path: Path
) -> None:
    """Of the base with the switch, and of the model that was saved with it."""
    found = []
    for rollouts, model, given in (("fast", base, OFF), ("trl", base, OFF), ("trl", quiet, {})):
        out = tmp_path / f"{rollouts} {Path(model).name}"
        settings = small_config(
            steps=1, rollouts=rollouts, zero_variance_groups="keep", max_episode_tokens=8,
            chat_template_kwargs=given,
        )  # fmt: skip
        grpo(PICK, str(model), out, settings)
        found.append(prompts(out))
        agents = [each.agent["chat_template_kwargs"] for each in episodes(out / "episodes.jsonl")]
        assert agents and all(agent == OFF for agent in agents)
        assert PolicyAgent(str(out)).describe()["chat_template_kwargs"] == OFF
        assert told(out)["dialect"]["chat_template_kwargs"] == OFF
    assert found[0] == found[1] == found[2]
    text = load(base, device="cpu").tokenizer.decode(found[0][0])
    assert text.endswith(CLOSED)
