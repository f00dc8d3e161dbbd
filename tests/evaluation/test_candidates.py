"""Parsing of candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.agents.oracle import OracleAgent
from ludus.errors import ConfigError
from ludus.evaluation.candidates import Candidate, parse_candidates
from ludus.policy.agent_factory import AgentConfig


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-nobody")


def test_label_is_given_or_derived_from_the_model() -> None:
    texts = ["oracle", "chance=random", "openai:gpt-5-mini", "hf:models/chain_sum", "smollm2"]
    texts += ["base=smollm2", "hf:org/Name", "hf:a=b/c", "anthropic:claude-haiku-4-5"]
    assert [candidate.label for candidate in parse_candidates(texts)] == [
        "oracle",
        "chance",
        "gpt-5-mini",
        "chain_sum",
        "smollm2",
        "base",
        "Name",
        "c",
        "claude-haiku-4-5",
    ]


def test_the_agent_is_of_the_provider() -> None:
    parsed = [candidate.agent for candidate in parse_candidates(["oracle", "random", "openai:m"])]
    assert [agent.provider for agent in parsed] == ["oracle", "random", "openai"]


def test_temperature_and_endpoint_apply_to_models_only() -> None:
    options = AgentConfig(llm_endpoint="http://127.0.0.1:9/v1", temperature=0.3)
    oracle, model = (one.agent for one in parse_candidates(["oracle", "openai:m"], options))
    assert oracle.describe() == {"provider": "oracle"}
    facts = model.describe()
    assert (facts["model"], facts["temperature"]) == ("m", 0.3)
    assert facts["endpoint"].startswith("http://127.0.0.1:9")


def test_chat_template_kwargs_apply_to_models_with_a_template() -> None:
    off = {"enable_thinking": False}
    options = AgentConfig(llm_endpoint="http://127.0.0.1:9/v1", chat_template_kwargs=off)
    texts = ["oracle", "hf:nobody/has-this", "openai:m", "anthropic:m"]
    parsed = parse_candidates(texts, options)
    told = [one.agent.describe().get("chat_template_kwargs") for one in parsed]
    assert told == [None, off, off, None]
    assert parsed[1].config is not None and parsed[1].config.chat_template_kwargs == off
    with pytest.raises(ConfigError, match="`thinking`"):
        parse_candidates(["oracle", "openai:m"], AgentConfig(chat_template_kwargs=off))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("opnai:gpt-5-mini", "Did you mean 'openai'?"),
        ("oracel", "Did you mean 'oracle'?"),
        ("nobody", "oracle, random, openai:MODEL"),
        ("", "oracle, random, openai:MODEL"),
        ("sft=", "oracle, random, openai:MODEL"),
        ("openai", " openai:MODEL."),
        ("hf:", " hf:MODEL."),
        ("oracle:gpt-5", "plays without a model"),
    ],
)
def test_invalid_candidate_is_rejected(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_candidates([text])
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["two words=oracle", "../up=random", "=oracle", "ä=openai:m"])
def test_invalid_label_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_candidates([text])
    label = text.partition("=")[0]
    assert str(refused.value).startswith(f"{label!r} cannot be a candidate's label")


def test_equals_sign_in_a_path_is_no_label(tmp_path: Path) -> None:
    (folder := tmp_path / "lr=0.1").mkdir()
    assert parse_candidates([str(folder)])[0].model == str(folder)


@pytest.mark.parametrize("text", ["sft=~/model", "sft=hf:~/model", "~/model"])
def test_tilde_is_expanded(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    (candidate,) = parse_candidates([text])
    assert candidate.model == str(tmp_path / "model")
    assert candidate.label == ("sft" if "=" in text else "model")


def test_tilde_of_an_unknown_user_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^~nobody-is-called-this/"):
        parse_candidates(["sft=~nobody-is-called-this/model"])


def test_bare_path_is_a_local_model(tmp_path: Path) -> None:
    (candidate,) = parse_candidates([str(tmp_path)])
    assert (candidate.label, candidate.model) == (tmp_path.name, str(tmp_path))
    assert candidate.agent.provider == "hf"


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (AgentConfig(llm_endpoint="http://127.0.0.1:9/v1"), "llm_endpoint"),
        (AgentConfig(temperature=0.0), "temperature"),
        (AgentConfig(device="cpu"), "device"),
        (AgentConfig(dtype="float32"), "dtype"),
    ],
)
def test_option_without_effect_is_rejected(options: AgentConfig, option: str) -> None:
    with pytest.raises(ConfigError, match=f"`{option}`"):
        parse_candidates(["oracle", "random"], options)


@pytest.mark.parametrize("label", ["../up", ".hidden", "two words", ""])
def test_label_must_be_a_folder_name(label: str) -> None:
    with pytest.raises(ConfigError, match="label"):
        Candidate(label, OracleAgent())
