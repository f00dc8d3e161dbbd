"""GRPOConfig: token budgets, and errors that name the argument."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.rollout import EpisodeLimits
from ludus.train import GRPOConfig
from ludus.train.grpo import grpo_config


def test_token_budgets_per_episode_and_per_reply() -> None:
    assert GRPOConfig(max_episode_tokens=256).rollout_config.limits == EpisodeLimits(
        max_episode_tokens=256
    )
    both = GRPOConfig(max_tokens=64, max_episode_tokens=512)
    assert both.rollout_config.limits == EpisodeLimits(max_tokens=64, max_episode_tokens=512)


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"max_tokens": 1024, "max_episode_tokens": 256}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_episode_tokens": -1}, "max_episode_tokens"),
        ({"group_size": 1}, "group_size"),
        ({"zero_variance_groups": "drop"}, "zero_variance_groups"),
        ({"credit": "token"}, "credit"),
        ({"gae_lambda": 1.1}, "gae_lambda"),
        ({"gae_lambda": float("nan")}, "gae_lambda"),
        ({"vllm_mode": "remote"}, "vllm_mode"),
        ({"temperature": 0.0}, "temperature"),
        ({"task": {"seed": 1}}, "task"),
    ],
)
def test_invalid_values_raise_and_name_the_argument(changes: dict[str, Any], argument: str) -> None:
    with pytest.raises(ConfigError, match=f"`{argument}`"):
        GRPOConfig(**changes)


def test_the_servers_address_and_token_are_not_stored() -> None:
    config = GRPOConfig(base_url="http://localhost:8000", token="secret")
    assert not {"base_url", "token"} & config.as_json().keys()
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("device", "expected"), [("cuda", (64, 8, 1024, 256)), ("cpu", (16, 4, 256, 64))]
)
def test_defaults_depend_on_the_device(
    device: str, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was set stays."""
    monkeypatch.setattr(grpo_config, "choose_device", lambda _: device)
    names = ("groups", "group_size", "max_episode_tokens", "eval_episodes")
    config = GRPOConfig().for_device()
    assert tuple(getattr(config, name) for name in names) == expected
    config = GRPOConfig(groups=3, eval_episodes=5).for_device()
    assert (config.groups, config.group_size, config.eval_episodes) == (3, expected[1], 5)


def test_a_reply_may_not_be_longer_than_the_default_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpo_config, "choose_device", lambda _: "cpu")
    with pytest.raises(ConfigError, match="`max_tokens`"):
        GRPOConfig(max_tokens=1024).for_device()
