"""Token budgets of GRPO: one for a reply, one for an episode."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.rollout import EpisodeLimits
from ludus.train import GRPOConfig


def test_token_budgets_per_episode_and_per_reply() -> None:
    assert GRPOConfig().limits == EpisodeLimits(max_turns=20, max_episode_tokens=256)
    both = GRPOConfig(max_tokens=64, max_episode_tokens=512)
    assert both.limits == EpisodeLimits(max_turns=20, max_tokens=64, max_episode_tokens=512)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_tokens": 1024}, "--max-tokens 1024 .*Raise --max-episode-tokens"),
        ({"max_tokens": 8, "rollouts": "trl"}, "--max-tokens is for --rollouts fast"),
        ({"max_tokens": 0}, "--max-tokens 0"),
        ({"max_episode_tokens": 0}, "--max-episode-tokens 0"),
    ],
)
def test_invalid_values_raise_and_name_the_argument(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GRPOConfig(**given)
