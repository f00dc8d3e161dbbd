"""All environments that ship with Ludus pass the checks."""

from __future__ import annotations

import pytest

from ludus.check import run_checks
from ludus.environment.registry import find_environment, registered_environments
from ludus.envs.reasoning_gym import ReasoningGym

SAMPLE = 8
"""Check every eighth variant; `make test-slow` checks all of them."""


@pytest.mark.parametrize("spec", sorted(registered_environments()))
async def test_registered_environment_passes(spec: str) -> None:
    if getattr(find_environment(spec).cls, "any_variant", False):
        pytest.skip("it needs the name of a server")
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
