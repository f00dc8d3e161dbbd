"""All environments that ship with Ludus pass the checks."""

from __future__ import annotations

import shutil

import pytest

from ludus.check import run_checks
from ludus.environment.registry import find_environment, registered_environments
from ludus.envs.browsergym.workers import process_pool
from ludus.envs.reasoning_gym import ReasoningGym

SAMPLE = 8
"""Check every eighth variant; `make test-slow` checks all of them."""


@pytest.mark.parametrize("spec", sorted({*registered_environments()} - {"browsergym"}))
async def test_registered_environment_passes(spec: str) -> None:
    if spec == "python" and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")
    if getattr(find_environment(spec).cls, "any_variant", False):
        pytest.skip("it needs the name of a server")
    report = await run_checks(spec)
    assert report.passed, report.failures


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
async def test_browsergym_passes() -> None:
    report = await run_checks("ludus.envs.browsergym:BrowserGym", seeds=3)
    process_pool().close()
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
