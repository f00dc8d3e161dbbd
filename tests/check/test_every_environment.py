"""All environments that ship with Ludus pass the checks."""

from __future__ import annotations

import pkgutil
import shutil

import pytest

import ludus.envs
from ludus.check import run_checks
from ludus.environment.registry import find_environment, registered_environments
from ludus.environment.runner import EnvironmentRunner
from ludus.envs.browsergym.workers import process_pool
from ludus.envs.reasoning_gym import ReasoningGym
from ludus.errors import FactoryFailed, LudusError, MissingExtra

SAMPLE = 8
"""Check every eighth variant; `make test-slow` checks all of them."""


async def skip_if_unavailable(spec: str) -> None:
    """Skip the test of an environment that says what this machine lacks."""
    try:
        env_spec = find_environment(spec)
    except MissingExtra as error:
        pytest.skip(str(error))
    if getattr(env_spec.cls, "any_variant", False):
        pytest.skip("it needs the name of a server")
    runner = EnvironmentRunner(env_spec)
    try:
        await runner.start()
    except FactoryFailed as error:
        if isinstance(error.__cause__, LudusError):
            pytest.skip(str(error))
        raise
    await runner.close()


def test_every_shipped_environment_is_registered() -> None:
    shipped = {each.name for each in pkgutil.iter_modules(ludus.envs.__path__) if each.ispkg}
    assert shipped <= registered_environments().keys(), "Install Ludus again: pip install -e ."


@pytest.mark.parametrize("spec", sorted({*registered_environments()} - {"browsergym"}))
async def test_registered_environment_passes(spec: str) -> None:
    await skip_if_unavailable(spec)
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
