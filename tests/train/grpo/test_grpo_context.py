"""The identity of a GRPO run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ludus.train import GRPOConfig, Lora
from ludus.train.grpo.grpo_context import GRPOContext

WITH_ADAPTER: dict[str, Any] = {
    "lora": Lora(rank=4), "zero_variance_groups": "resample", "reward_funcs": ("m:f",),
}  # fmt: skip


def run_id(config: GRPOConfig) -> str:
    context = SimpleNamespace(
        config=config, model_ref=SimpleNamespace(name="base"), subject="wordle"
    )
    return cast(str, cast(Any, GRPOContext.run_id).fget(context))


@pytest.mark.parametrize(
    ("config", "expected"),
    [(GRPOConfig(), "34275820"), (GRPOConfig(steps=7, **WITH_ADAPTER), "db494e9a")],
)
def test_run_ids_are_those_of_earlier_versions(config: GRPOConfig, expected: str) -> None:
    assert run_id(config) == expected


def test_the_run_id_does_not_depend_on_where_and_how_long_a_run_is_trained() -> None:
    moved = GRPOConfig(steps=9, base_url="http://localhost:8000", token="secret", device="cpu")
    assert run_id(moved) == run_id(GRPOConfig())
    assert run_id(GRPOConfig(seed=1)) != run_id(GRPOConfig())
