from __future__ import annotations

from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.train.settings import Lora, Settings, learning_rate_of, overrides_of, settled

SMALL, LARGE = 135_000_000, 7_000_000_000


def test_a_rate_suits_the_method_the_size_and_the_adapter() -> None:
    rate = learning_rate_of
    assert rate(Settings(), "sft", SMALL) > rate(Settings(), "sft", LARGE)
    assert rate(Settings(lora=Lora()), "sft", LARGE) == rate(Settings(), "sft", SMALL)
    assert rate(Settings(), "dpo", SMALL) < rate(Settings(), "sft", LARGE)
    assert rate(Settings(learning_rate=0.5), "dpo", LARGE) == 0.5


def test_more_tasks_in_a_step_allow_a_small_model_a_higher_rate() -> None:
    rate = learning_rate_of
    few, many = (rate(Settings(), "grpo", SMALL, groups=groups) for groups in (4, 64))
    assert many == pytest.approx(4 * few)
    assert rate(Settings(), "grpo", SMALL) == pytest.approx(2 * few)
    assert rate(Settings(), "grpo", LARGE, groups=4) == rate(Settings(), "grpo", LARGE, groups=64)
    adapted = Settings(lora=Lora())
    assert rate(adapted, "grpo", LARGE, groups=64) > rate(adapted, "grpo", LARGE, groups=4)
    assert rate(Settings(learning_rate=0.5), "grpo", SMALL, groups=64) == 0.5


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
        Settings(**asked)


def test_an_adapter_without_layers_or_rank_is_refused() -> None:
    wrong: list[dict[str, Any]] = [{"rank": 0}, {"dropout": 1.0}, {"targets": ()}, {"alpha": 0}]
    for asked in wrong:
        with pytest.raises(ConfigError, match="--lora"):
            Lora(**asked)


def test_an_adapter_is_scaled_by_twice_its_rank() -> None:
    assert Lora(rank=8).scale == 16
    assert Lora(rank=8, alpha=8).scale == 8


def test_what_the_other_method_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="--packing is for SFT"):
        settled(Settings(packing=True), "dpo")
    with pytest.raises(ConfigError, match="--compile is for SFT"):
        settled(Settings(compile=True), "dpo")
    with pytest.raises(ConfigError, match="--beta is for DPO"):
        settled(Settings(beta=0.1), "sft")


def test_pairs_are_seen_once_and_rows_three_times_unless_told() -> None:
    assert (settled(Settings(), "sft").epochs, settled(Settings(), "dpo").epochs) == (3, 1)
    assert settled(Settings(epochs=0.5), "dpo") == Settings(epochs=0.5)


def test_assignments_are_read_by_name() -> None:
    assert overrides_of(["weight-decay=0.1", "optim = sgd", "a=b=c"]) == {
        "weight_decay": "0.1",
        "optim": "sgd",
        "a": "b=c",
    }


@pytest.mark.parametrize("text", ["optim", "=1", "optim=a optim=b"])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        overrides_of(text.split())
