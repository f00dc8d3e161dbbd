"""The identity of a GRPO run, and how its model may be divided among processes."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ludus.errors import ConfigError
from ludus.train import GRPOConfig
from ludus.train.context import GRPOContext, check_sharding


def run_id(config: GRPOConfig) -> str:
    context = SimpleNamespace(
        config=config, model_ref=SimpleNamespace(name="base"), subject="wordle"
    )
    return cast(str, cast(Any, GRPOContext.run_id).fget(context))


def test_the_run_id_does_not_depend_on_where_and_how_long_a_run_is_trained() -> None:
    moved = GRPOConfig(steps=9, base_url="http://localhost:8000", token="secret", device="cpu")
    assert run_id(moved) == run_id(GRPOConfig())
    assert run_id(GRPOConfig(seed=1)) != run_id(GRPOConfig())


@pytest.mark.parametrize(
    ("variables", "fields", "takes_images"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, {}, False),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, {}, False),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}, {"use_vllm": True}, False),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}, {}, True),
        ({}, {"fsdp": "full_shard"}, False),
        ({}, {"deepspeed": "zero.json"}, False),
    ],
)
def test_ways_to_divide_a_model_with_which_it_cannot_decode_are_refused(
    variables: dict[str, str], fields: dict[str, object], takes_images: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config: Any = SimpleNamespace(**{"fsdp": None, "deepspeed": None, "use_vllm": False, **fields})
    with pytest.raises(ConfigError, match="FSDP"):
        check_sharding(config, takes_images=takes_images)


def test_fsdp2_is_accepted_and_every_rank_loads_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    config: Any = SimpleNamespace(fsdp=None, deepspeed=None, use_vllm=False)
    check_sharding(config, takes_images=False)
    assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"
