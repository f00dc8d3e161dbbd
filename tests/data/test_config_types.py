"""Values of a wrong type in a config: one line that names the field, its type and the value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from ludus import (
    CollectConfig,
    CurateConfig,
    EvalConfig,
    GRPOConfig,
    Lora,
    RescoreConfig,
    TrainConfig,
    TutorConfig,
)
from ludus.errors import ConfigError
from ludus.policy.agent_factory import AgentConfig
from ludus.serve.config import ModelServeConfig, ServeConfig


@pytest.mark.parametrize(
    ("config", "name", "value", "expected"),
    [
        (TrainConfig, "lora", True, "Lora | None"),
        (TrainConfig, "steps", "1", "int | None"),
        (TrainConfig, "epochs", "3", "float | None"),
        (TrainConfig, "batch_size", 2.0, "int | None"),
        (TrainConfig, "drop_untrainable", 1, "bool"),
        (TrainConfig, "overrides", ["optim=sgd"], "Mapping[str, Any]"),
        (Lora, "rank", True, "int"),
        (Lora, "target_modules", "q_proj", "tuple[str, ...] | None"),
        (GRPOConfig, "groups", None, "int"),
        (GRPOConfig, "keep", "bets", "one of best, last"),
        (GRPOConfig, "reward_funcs", (len,), "tuple[str, ...]"),
        (TutorConfig, "train", {}, "TrainConfig"),
        (CollectConfig, "num_episodes", "ten", "int | None"),
        (CollectConfig, "agent", len, "Agent | None"),
        (CollectConfig, "task", "{}", "Mapping[str, Any]"),
        (CollectConfig, "tasks", [3], "Sequence[dict[str, Any]]"),
        (EvalConfig, "pass_k", 4, "Sequence[int]"),
        (AgentConfig, "temperature", "0", "float | None"),
        (RescoreConfig, "rewards", "mine:reward", "Sequence"),
        (CurateConfig, "solve_rate", (0.1,), "tuple[float, float] | None"),
        (CurateConfig, "to", "stf", "one of sft, dpo"),
        (CurateConfig, "keep_unscored", "no", "bool"),
        (ServeConfig, "port", "8000", "int"),
        (ModelServeConfig, "record", "runs/x", "Path | None"),
    ],
)
def test_a_value_of_another_type_is_an_error(
    config: Callable[..., Any], name: str, value: Any, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**{name: value})
    text = str(caught.value)
    assert f"{name}` must be {expected}" in text and f"got {value!r}" in text


@pytest.mark.parametrize("config", [CollectConfig, GRPOConfig, TutorConfig, ServeConfig])
def test_a_token_is_not_shown(config: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"`token` must be str \| None, got bytes") as caught:
        config(token=b"hunter2")
    assert "hunter2" not in str(caught.value)


def test_a_text_in_place_of_an_agent_is_told_how_to_make_one() -> None:
    with pytest.raises(ConfigError, match=r"`tutor` .*Use ludus\.agent\('oracle'\)"):
        TutorConfig(tutor="oracle")  # type: ignore[arg-type]


def test_the_closest_choice_is_named() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'best'"):
        GRPOConfig(keep="bets")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [
        (TrainConfig, "epochs", 3),
        (TrainConfig, "learning_rate", np.float32(0.5)),
        (Lora, "target_modules", ["q_proj"]),
        (GRPOConfig, "vllm_mode", "server"),
        (EvalConfig, "num_episodes", np.int64(4)),
        (EvalConfig, "pass_k", range(1, 2)),
        (RescoreConfig, "rewards", ["mine:reward", len]),
        (CurateConfig, "held_out", ("runs/x", Path("runs/y"))),
        (CollectConfig, "task", MappingProxyType({"size": 3})),
    ],
)
def test_what_stands_for_a_type_is_accepted(
    config: Callable[..., Any], name: str, value: Any
) -> None:
    assert getattr(config(**{name: value}), name) is value
