"""The config of SFT and DPO: defaults, and values that are rejected."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.train.config import Lora, TrainConfig, with_defaults


@pytest.mark.parametrize(
    ("fields", "argument"),
    [
        ({"epochs": 0}, "epochs"),
        ({"steps": 0}, "steps"),
        ({"steps": 2, "epochs": 2.0}, "epochs"),
        ({"epochs": float("nan")}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"max_length": 1}, "max_length"),
        ({"precision": "bf61"}, "precision"),
        ({"checkpoint_every": -1.0}, "checkpoint_every"),
    ],
)
def test_invalid_values_raise_and_name_the_argument(fields: dict[str, Any], argument: str) -> None:
    with pytest.raises(ConfigError, match=f"`{argument}`"):
        TrainConfig(**fields)


def test_a_misspelt_precision_is_answered_with_the_closest() -> None:
    misspelt: Any = "bf61"
    with pytest.raises(ConfigError, match="'bf16'"):
        TrainConfig(precision=misspelt)


@pytest.mark.parametrize(
    ("field", "value"), [("rank", 0), ("dropout", 1.0), ("target_modules", ()), ("alpha", 0)]
)
def test_invalid_lora_fields_raise(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"`lora\.{field}`"):
        Lora(**{field: value})


def test_alpha_is_twice_the_rank_by_default() -> None:
    assert Lora(rank=8).effective_alpha == 16
    assert Lora(rank=8, alpha=8).effective_alpha == 8


def test_fields_of_the_other_method_raise() -> None:
    with pytest.raises(ConfigError, match="`compile`"):
        with_defaults(TrainConfig(compile=True), "dpo")
    with pytest.raises(ConfigError, match="`beta`"):
        with_defaults(TrainConfig(beta=0.1), "sft")


def test_epochs_default_by_method_and_only_if_unset() -> None:
    sft, dpo = (with_defaults(TrainConfig(), method).epochs for method in ("sft", "dpo"))
    assert sft is not None and dpo is not None and sft > dpo
    assert with_defaults(TrainConfig(epochs=0.5), "dpo") == TrainConfig(epochs=0.5)
    assert with_defaults(TrainConfig(steps=5), "sft").epochs is None
