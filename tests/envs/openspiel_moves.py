"""Moves in games of OpenSpiel."""

from __future__ import annotations

from typing import Any

from ludus.environment.introspection import build_env_spec
from ludus.envs.openspiel import (
    OpenSpiel,
)
from ludus.protocol.types import Observation


def step(env: OpenSpiel, action_id: int, **fields: Any) -> Observation:
    action = build_env_spec(OpenSpiel).parse_action({"action_id": action_id, **fields})
    observation = env.step(action)
    assert isinstance(observation, Observation)
    return observation
