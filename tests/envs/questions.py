"""Questions of reasoning_gym, asked and answered through a host."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ludus.environment.registry import find_environment
from ludus.environment.runner import EnvironmentRunner
from ludus.envs.reasoning_gym import (
    ReasoningGym,
    ReasoningGymAction,
)
from ludus.protocol.types import Observation

ENDLESS = "*".join(f"(sin({k}*x) + cos({k}*x))**{k}" for k in range(1, 7))
"""An integral of ordinary size whose derivative sympy does not simplify within seconds."""


def hosted(spec: str, *requests: tuple[str, Mapping[str, Any]]) -> list[Observation]:
    """What a host of `spec` replies to resets and steps."""

    async def talk() -> list[Observation]:
        host = EnvironmentRunner(find_environment(spec))
        await host.start()
        seen = []
        for kind, data in requests:
            seen.append(await (host.reset(data) if kind == "reset" else host.step(data)))
        await host.close()
        return seen

    return asyncio.run(talk())


def question(variant: str | None = None, **task: Any) -> str:
    asked = ReasoningGym(variant).reset(**task).question
    assert asked
    return asked


def oracle_score(variant: str, **task: Any) -> float | None:
    environment = ReasoningGym(variant)
    environment.reset(**task)
    call = environment.oracle()
    assert call is not None
    return environment.step(ReasoningGymAction(**call.arguments)).score


def score(variant: str, answer: str, **task: Any) -> float | None:
    environment = ReasoningGym(variant)
    environment.reset(**task)
    return environment.step(ReasoningGymAction(answer=answer)).score


# Resets
