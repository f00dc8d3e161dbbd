"""All environments that ship with Ludus pass the checks."""

from __future__ import annotations

import pytest

from ludus.check import run_checks
from ludus.environment.registry import find_environment, registered_environments
from ludus.envs.reasoning_gym import ReasoningGym

SAMPLE = 8
"""Check every eighth variant; `make test-slow` checks all of them."""


NAMES = [
    name
    for name in registered_environments()
    if not getattr(find_environment(name).cls, "any_variant", False)
]
"""Without `mcp`, which needs the command of a server."""


@pytest.mark.parametrize("spec", NAMES)
async def test_registered_environment_passes(spec: str) -> None:
    report = await run_checks(spec)
    assert report.passed, report.failures


@pytest.mark.parametrize("variant", ReasoningGym.variants()[::SAMPLE])
async def test_sampled_variant_passes(variant: str) -> None:
    report = await run_checks(f"reasoning_gym:{variant}", seeds=3)
    assert report.passed, report.failures


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", ReasoningGym.variants())
async def test_variant_passes(variant: str) -> None:
    report = await run_checks(f"reasoning_gym:{variant}", seeds=3)
    assert report.passed, report.failures
