"""All environments that ship with Ludus pass the checks."""

from __future__ import annotations

import pkgutil
import shutil
from collections import Counter
from pathlib import Path

import pytest

import ludus.envs
from ludus.check import run_checks
from ludus.check.reward_audit import audit_environment, beats_coin
from ludus.environment.registry import find_environment, registered_environments
from ludus.environment.runner import EnvironmentRunner
from ludus.envs.browsergym.worker import browser_pool
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
    browser_pool().end_idle()
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


def test_docs_have_the_floor_of_every_environment() -> None:
    page = (Path(__file__).parents[2] / "docs/reward-floors.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    games = {"mcp", "mcp+http", "mcp+https", "openspiel", "reasoning_gym", "textarena"}
    missing = {*registered_environments()} - games - rows
    missing |= {f"reasoning_gym:{each}" for each in ReasoningGym.variants()} - rows
    assert not missing, "Run benchmarks/reward_floors.py for these."
    assert sum(each.startswith("textarena:") for each in rows) >= 20


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("variant", ReasoningGym.variants())
async def test_top_reward_takes_more_than_a_cheap_player(variant: str) -> None:
    """No player is right on more questions than a coin would be, once in a thousand times."""
    audit = await audit_environment(f"reasoning_gym:{variant}", seeds=64, patience=15)
    assert audit.tried > 50 and audit.seeds >= 20
    assert not audit.describe_unclear()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", ReasoningGym.oracle_variants())
def test_no_answer_is_usual(variant: str) -> None:
    """No constant, whether a player tries it or not, answers most questions."""
    environment, answers = ReasoningGym(variant), Counter[str]()
    for seed in range(64):
        environment.reset(seed=seed, size=1)
        solution = environment.oracle()
        assert solution is not None
        answers[solution.arguments["answer"]] += 1
    answer, count = answers.most_common(1)[0]
    assert not beats_coin(count, 64), answer
