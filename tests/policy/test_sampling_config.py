"""An agent describes the sampling parameters in effect, also before its model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import of_family

from ludus.data.tool_schema import JsonObject
from ludus.policy.agent import PolicyAgent
from policy.models import adapted, saved

RECOMMENDATION = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
FIELDS = ("temperature", "top_p", "top_k")


def save_with_recommendation(folder: Path, **recommendation: Any) -> Path:
    saved(folder, of_family("qwen3"))
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | recommendation))
    return folder


def described_sampling(agent: PolicyAgent) -> JsonObject:
    return {name: value for name, value in agent.describe().items() if name in FIELDS}


@pytest.mark.parametrize(
    ("recommendation", "given", "expected"),
    [
        (RECOMMENDATION, {}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        (RECOMMENDATION, {"extra": {"top_k": 5}}, {"temperature": 0.6, "top_p": 0.95, "top_k": 5}),
        (RECOMMENDATION, {"temperature": 0.0}, {"temperature": 0.0}),
        (RECOMMENDATION | {"do_sample": False}, {}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.8}, {}, {"temperature": 0.8}),
        ({}, {}, {"temperature": 1.0}),
    ],
)
async def test_the_effective_parameters_are_described_before_and_after_loading(
    recommendation: JsonObject, given: JsonObject, expected: JsonObject, tmp_path: Path
) -> None:
    name = str(save_with_recommendation(tmp_path, **recommendation))
    assert described_sampling(PolicyAgent(name, **given)) == expected
    async with PolicyAgent(name, device="cpu", **given) as agent:
        loaded = await agent.ensure_loaded()
        effective = {name: getattr(loaded.sampling, name) for name in FIELDS}
        assert effective == {"top_p": 1.0, "top_k": None} | expected
        assert (
            described_sampling(PolicyAgent(loaded.policy, **given))
            == described_sampling(agent)
            == expected
        )


def test_an_adapter_is_sampled_like_its_base_model(tmp_path: Path) -> None:
    tuned = adapted(
        tmp_path / "tuned", save_with_recommendation(tmp_path / "base", **RECOMMENDATION)
    )
    assert described_sampling(PolicyAgent(str(tuned)))["temperature"] == 0.6


def test_smollm2_has_a_recommendation_and_hub_models_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUDUS_CACHE", str(tmp_path / "cache"))
    assert described_sampling(PolicyAgent("smollm2")) == {"temperature": 1.0}
    assert described_sampling(PolicyAgent("org/name")) == {}


def test_a_damaged_generation_config_is_ignored(tmp_path: Path) -> None:
    (save_with_recommendation(tmp_path) / "generation_config.json").write_text("{")
    assert described_sampling(PolicyAgent(str(tmp_path))) == {"temperature": 1.0}


def test_a_trailing_slash_does_not_change_the_model(tmp_path: Path) -> None:
    saved(tmp_path)
    assert PolicyAgent(f"{tmp_path}/").describe() == PolicyAgent(str(tmp_path)).describe()
    assert PolicyAgent("/").model == "/"
