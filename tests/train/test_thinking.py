"""Training with arguments of the chat template, such as thinking switched off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from policy.conversations import ENDED, PLAYED
from policy.models import saved
from tiny_tokenizers import of_family

from ludus import episodes, grpo, sft
from ludus.errors import ConfigError, RunError
from ludus.policy.agent import PolicyAgent
from ludus.policy.chat.rendering import render
from ludus.policy.load import load
from ludus.train import Lora
from train.grpo.toy_environments import PICK, small_config
from train.sample_rows import dpo_row, sft_data, write_jsonl
from train.short_runs import train_config

OFF, ON = {"enable_thinking": False}, {"enable_thinking": True}
CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base"), of_family("qwen3")))


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, base: str) -> Path:
    """A model that was trained with thinking switched off."""
    folder = tmp_path_factory.mktemp("quiet")
    sft(
        sft_data(folder / "data", rows=2),
        base,
        folder / "out",
        train_config(chat_template_kwargs=OFF),
    )
    return folder / "out"


def read_record(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "training.json").read_text())
    return record


def prompts(out: Path) -> list[tuple[int, ...]]:
    tokens = [episode.tokens for episode in episodes(out / "episodes.jsonl")]
    return [each.ids[: each.mask.index(1)] for each in tokens if each is not None]


def test_template_arguments_are_recorded_and_saved_with_the_model(quiet: Path) -> None:
    assert read_record(quiet)["settings"]["chat_template_kwargs"] == OFF
    assert read_record(quiet)["chat_format"]["chat_template_kwargs"] == OFF
    assert "enable_thinking" in (quiet / "README.md").read_text()
    assert PolicyAgent(str(quiet)).describe()["chat_template_kwargs"] == OFF


def test_a_row_is_trained_on_after_its_generation_prompt(quiet: Path) -> None:
    policy = load(str(quiet), device="cpu")
    row = ENDED["messages"]
    whole = render(policy.tokenizer, row, ENDED["tools"], policy.chat_format.template)
    prompt = render(
        policy.tokenizer,
        row[:-1],
        ENDED["tools"],
        policy.chat_format.template,
        add_generation_prompt=True,
    )
    assert prompt.text.endswith(CLOSED) and whole.ids[: len(prompt.ids)] == prompt.ids


def test_another_training_inherits_template_arguments_unless_they_are_set(
    quiet: Path, tmp_path: Path
) -> None:
    data = sft_data(tmp_path / "data", rows=2)
    for name, kwargs in (("inherited", {}), ("thinking", ON)):
        lora = Lora(rank=2, merge_adapter=False)
        settings = train_config(chat_template_kwargs=kwargs, lora=lora)
        sft(data, str(quiet), tmp_path / name, settings)
        assert read_record(tmp_path / name)["chat_format"]["chat_template_kwargs"] == {
            **OFF,
            **kwargs,
        }
        adapted = PolicyAgent(str(tmp_path / name))
        assert adapted.describe()["chat_template_kwargs"] == {**OFF, **kwargs}


def test_a_run_is_not_resumed_with_other_template_arguments(quiet: Path, base: str) -> None:
    data = quiet.parent / "data"
    with pytest.raises(RunError, match="chat_template_kwargs"):
        sft(data, base, quiet, train_config(chat_template_kwargs=ON))


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_rows_with_reasoning_raise_if_the_template_turns_it_off(
    kind: str, base: str, tmp_path: Path
) -> None:
    from ludus import dpo

    row = dpo_row(1)
    row["chosen"][0]["reasoning_content"] = "Hm."
    write_jsonl(tmp_path / "data" / "train.jsonl", [PLAYED if kind == "sft" else row])
    train = sft if kind == "sft" else dpo
    with pytest.raises(ConfigError, match="reasoning_content") as raised:
        train(tmp_path / "data", base, tmp_path / "out", train_config(chat_template_kwargs=OFF))
    assert "\n" not in str(raised.value)


def test_a_template_without_the_argument_raises_before_anything_is_written(
    tmp_path: Path,
) -> None:
    model = saved(tmp_path / "model", of_family("qwen2_5"))
    data = sft_data(tmp_path / "data", rows=2)
    with pytest.raises(ConfigError, match="'enable_thinking'"):
        sft(data, str(model), tmp_path / "out", train_config(chat_template_kwargs=OFF))
    with pytest.raises(ConfigError, match="'enable_thinking'"):
        grpo(PICK, str(model), tmp_path / "out", small_config(chat_template_kwargs=OFF))
    assert not (tmp_path / "out").exists()


def test_grpo_prompts_are_those_of_the_template_arguments(
    base: str, quiet: Path, tmp_path: Path
) -> None:
    """For the base model with the argument, and for the model that was saved with it."""
    prompts_of_runs = []
    for model, kwargs in ((base, OFF), (quiet, {})):
        out = tmp_path / f"trained {Path(model).name}"
        settings = small_config(
            steps=1, zero_variance_groups="keep", max_episode_tokens=8, chat_template_kwargs=kwargs
        )
        grpo(PICK, str(model), out, settings)
        prompts_of_runs.append(prompts(out))
        agents = [each.agent["chat_template_kwargs"] for each in episodes(out / "episodes.jsonl")]
        assert agents and all(agent == OFF for agent in agents)
        assert PolicyAgent(str(out)).describe()["chat_template_kwargs"] == OFF
        assert read_record(out)["chat_format"]["chat_template_kwargs"] == OFF
    assert prompts_of_runs[0] == prompts_of_runs[1]
    text = load(base, device="cpu").tokenizer.decode(prompts_of_runs[0][0])
    assert text.endswith(CLOSED)
