"""What an agent tells of its sampling is what it does, also before its model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from students import of_family

from ludus.data.tool_schema import JsonObject
from ludus.policy.agent import PolicyAgent
from policy.models import adapted, saved

ADVICE = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
SAMPLING = ("temperature", "top_p", "top_k")


def advising(folder: Path, **advice: Any) -> Path:
    saved(folder, of_family("qwen3"))
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | advice))
    return folder


def told(agent: PolicyAgent) -> JsonObject:
    return {name: value for name, value in agent.describe().items() if name in SAMPLING}


@pytest.mark.parametrize(
    ("advice", "given", "expected"),
    [
        (ADVICE, {}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        (ADVICE, {"extra": {"top_k": 5}}, {"temperature": 0.6, "top_p": 0.95, "top_k": 5}),
        (ADVICE, {"temperature": 0.0}, {"temperature": 0.0}),
        (ADVICE | {"do_sample": False}, {}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.8}, {}, {"temperature": 0.8}),
        ({}, {}, {"temperature": 1.0}),
    ],
)
async def test_the_settings_in_force_are_told_before_and_after_loading(
    advice: JsonObject, given: JsonObject, expected: JsonObject, tmp_path: Path
) -> None:
    name = str(advising(tmp_path, **advice))
    assert told(PolicyAgent(name, **given)) == expected
    async with PolicyAgent(name, device="cpu", **given) as agent:
        ready = await agent.ensure_loaded()
        used = {part: getattr(ready.sampling, part) for part in SAMPLING}
        assert used == {"top_p": 1.0, "top_k": None} | expected
        assert told(PolicyAgent(ready.policy, **given)) == told(agent) == expected


def test_an_adapter_is_sampled_as_its_base_is(tmp_path: Path) -> None:
    tuned = adapted(tmp_path / "tuned", advising(tmp_path / "base", **ADVICE))
    assert told(PolicyAgent(str(tuned)))["temperature"] == 0.6


def test_of_smollm2_it_is_known_and_of_the_hub_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUDUS_CACHE", str(tmp_path / "cache"))
    assert told(PolicyAgent("smollm2")) == {"temperature": 1.0}
    assert told(PolicyAgent("org/name")) == {}


def test_a_damaged_advice_is_left_to_the_loader(tmp_path: Path) -> None:
    (advising(tmp_path) / "generation_config.json").write_text("{")
    assert told(PolicyAgent(str(tmp_path))) == {"temperature": 1.0}


def test_a_slash_behind_a_folder_makes_no_other_model(tmp_path: Path) -> None:
    saved(tmp_path)
    assert PolicyAgent(f"{tmp_path}/").describe() == PolicyAgent(str(tmp_path)).describe()
    assert PolicyAgent("/").model == "/"
