from __future__ import annotations

from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.train.config import (
    Lora,
    TrainConfig,
    parse_assignments,
    resolve_learning_rate,
    with_defaults,
)

SMALL, LARGE = 135_000_000, 7_000_000_000


def test_a_rate_suits_the_method_the_size_and_the_adapter() -> None:
    rate = resolve_learning_rate
    assert rate(TrainConfig(), "sft", SMALL) > rate(TrainConfig(), "sft", LARGE)
    assert rate(TrainConfig(lora=Lora()), "sft", LARGE) == rate(TrainConfig(), "sft", SMALL)
    assert rate(TrainConfig(), "dpo", SMALL) < rate(TrainConfig(), "sft", LARGE)
    assert rate(TrainConfig(learning_rate=0.5), "dpo", LARGE) == 0.5


def test_more_tasks_in_a_step_allow_a_small_model_a_higher_rate() -> None:
    rate = resolve_learning_rate
    few, many = (rate(TrainConfig(), "grpo", SMALL, groups=groups) for groups in (4, 64))
    assert many == pytest.approx(4 * few)
    assert rate(TrainConfig(), "grpo", SMALL) == pytest.approx(2 * few)
    assert rate(TrainConfig(), "grpo", LARGE, groups=4) == rate(
        TrainConfig(), "grpo", LARGE, groups=64
    )
    adapted = TrainConfig(lora=Lora())
    assert rate(adapted, "grpo", LARGE, groups=64) > rate(adapted, "grpo", LARGE, groups=4)
    assert rate(TrainConfig(learning_rate=0.5), "grpo", SMALL, groups=64) == 0.5


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"epochs": 0}, "--epochs 0"),
        ({"steps": 0}, "--steps 0"),
        ({"steps": 2, "epochs": 2.0}, "--epochs and --steps"),
        ({"epochs": float("nan")}, "--epochs nan"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"learning_rate": -1.0}, "--learning-rate -1.0"),
        ({"max_length": 1}, "--max-length 1"),
        ({"precision": "bf61"}, "Did you mean 'bf16'?"),
        ({"checkpoint_every": -1.0}, "--checkpoint-every"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        TrainConfig(**asked)


def test_an_adapter_without_layers_or_rank_is_refused() -> None:
    wrong: list[dict[str, Any]] = [{"rank": 0}, {"dropout": 1.0}, {"targets": ()}, {"alpha": 0}]
    for asked in wrong:
        with pytest.raises(ConfigError, match="--lora"):
            Lora(**asked)


def test_an_adapter_is_scaled_by_twice_its_rank() -> None:
    assert Lora(rank=8).effective_alpha == 16
    assert Lora(rank=8, alpha=8).effective_alpha == 8


def test_what_the_other_method_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="--packing is for SFT"):
        with_defaults(TrainConfig(packing=True), "dpo")
    with pytest.raises(ConfigError, match="--compile is for SFT"):
        with_defaults(TrainConfig(compile=True), "dpo")
    with pytest.raises(ConfigError, match="--beta is for DPO"):
        with_defaults(TrainConfig(beta=0.1), "sft")


def test_pairs_are_seen_once_and_rows_three_times_unless_told() -> None:
    assert (
        with_defaults(TrainConfig(), "sft").epochs,
        with_defaults(TrainConfig(), "dpo").epochs,
    ) == (3, 1)
    assert with_defaults(TrainConfig(epochs=0.5), "dpo") == TrainConfig(epochs=0.5)


def test_assignments_are_read_by_name() -> None:
    assert parse_assignments(["weight-decay=0.1", "optim = sgd", "a=b=c"]) == {
        "weight_decay": "0.1",
        "optim": "sgd",
        "a": "b=c",
    }


@pytest.mark.parametrize("text", ["optim", "=1", "optim=a optim=b"])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        parse_assignments(text.split())
