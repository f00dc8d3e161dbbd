"""The identity of a GRPO run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ludus.train import GRPOConfig
from ludus.train.context import GRPOContext


def run_id(config: GRPOConfig) -> str:
    context = SimpleNamespace(
        config=config, model_ref=SimpleNamespace(name="base"), subject="wordle"
    )
    return cast(str, cast(Any, GRPOContext.run_id).fget(context))


def test_the_run_id_does_not_depend_on_where_and_how_long_a_run_is_trained() -> None:
    moved = GRPOConfig(steps=9, base_url="http://localhost:8000", token="secret", device="cpu")
    assert run_id(moved) == run_id(GRPOConfig())
    assert run_id(GRPOConfig(seed=1)) != run_id(GRPOConfig())
