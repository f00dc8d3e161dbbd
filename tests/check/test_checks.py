"""Each check finds its own defect, and sound environments pass."""

from __future__ import annotations

import random
from typing import Any

import pytest
from cli.collect_cli import CLEAN_ENV
from ludus_process import run_ludus
from world import Counter, Measured, serving

from ludus import Observation, ToolCall, tool
from ludus.check import CheckReport, run_checks
from ludus.check.checks import CHECKS
from ludus.errors import ConfigError


async def failures(spec: str, **options: Any) -> set[str]:
    report = await run_checks(spec, **options)
    return {finding.check for finding in report.failures}


class Shared(Counter):
    """All instances keep one total."""

    totals: list[int] = []  # noqa: RUF012 - that is the defect

    def reset(self, *, seed: int | None = None, goal: int | None = None) -> str:
        self.totals.clear()
        return super().reset(seed=seed, goal=goal)

    @tool
    def add(self, number: int) -> str:
        """Add a number.

        Args:
            number: How much to add.
        """
        self.totals.append(number)
        return super().add(number) + f" {len(self.totals)} so far."


class Unseeded(Counter):
    """Does not care about the seed."""

    def reset(self, *, seed: int | None = None, goal: int | None = None) -> str:
        return super().reset(goal=random.SystemRandom().randint(5, 10**9))

    @tool
    def add(self, number: int) -> str:
        """Add a number.

        Args:
            number: How much to add.
        """
        return self.finish(1.0, f"{self.goal}")


class SameForAll(Counter):
    """Ignores the seed, reproducibly."""

    def reset(self, *, seed: int | None = None, goal: int | None = None) -> str:
        return super().reset(goal=7)


class Weak(Counter):
    """An oracle that is not one."""

    def oracle(self) -> ToolCall:
        return ToolCall(name="add", arguments={"number": 1000})


class Backwards(Measured):
    """Measures what is left instead of what is done."""

    def progress(self) -> float | None:
        return max(0.0, 1 - self.total / self.goal)


class Wrong(Observation):
    count: int = 0


class Lying(Counter):
    """Sends what its schema does not have."""

    def reset(self, *, seed: int | None = None, goal: int | None = None) -> Wrong:  # type: ignore[override]
        super().reset(seed=seed, goal=goal)
        observation = Wrong()
        object.__setattr__(observation, "count", "three")
        observation.__dict__["count"] = "three"
        return observation


class Hopeless(Counter):
    """Cannot be built."""

    def __init__(self) -> None:
        raise RuntimeError("out of order")


class NeedsProgram(Counter):
    """Says what it needs to be built."""

    def __init__(self) -> None:
        raise ConfigError("There is no program frob. Install it: apt install frob")


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("Shared", {"sessions do not see each other"}),
        # A constant solves the only task.
        ("SameForAll", {"different seeds differ", "weak players score below the oracle"}),
        ("Weak", {"the oracle reaches the top reward"}),
        ("Backwards", {"progress grows towards the goal"}),
        ("Hopeless", {"starts"}),
    ],
)
async def test_defect_fails_its_own_check_only(name: str, broken: set[str]) -> None:
    assert await failures(f"check.test_checks:{name}") == broken


async def test_random_environment_fails() -> None:
    assert "same seed, same episode" in await failures("check.test_checks:Unseeded")


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_observation_that_violates_its_schema_fails() -> None:
    assert "observations fit the schema" in await failures("check.test_checks:Lying")


async def test_error_raised_on_purpose_has_its_own_advice() -> None:
    report = await run_checks("check.test_checks:NeedsProgram")
    (found,) = report.findings
    assert found.detail == "There is no program frob. Install it: apt install frob"
    assert not found.advice


@pytest.mark.parametrize("spec", ["catch", "echo", "wordle", "world:Measured", "world:LineWorld"])
async def test_sound_environment_passes(spec: str) -> None:
    failed = await failures(spec)
    # Walking anywhere on the line ends well, whatever the seed.
    known = {"different seeds differ", "weak players score below the oracle"}
    assert failed <= (known if spec == "world:LineWorld" else set())


async def test_server_is_checked_with_the_local_oracle() -> None:
    with serving("catch") as served:
        report = await run_checks(served.url, seeds=3)
    assert report.passed, report.failures
    (oracle,) = [each for each in report.findings if each.check.startswith("the oracle")]
    assert oracle.detail == "1 on 3 seeds"


async def test_too_few_sessions_fail() -> None:
    with serving(Counter, max_sessions=2, queue_timeout=0.1) as served:
        assert "enough sessions at once" in await failures(served.url, sessions=3)


def test_command_prints_a_line_per_check() -> None:
    good = run_ludus("check", "catch")
    assert good.returncode == 0 and "fail" not in good.stdout.lower()
    assert good.stdout.count(" pass ") + good.stdout.count(" skip ") == 15
    bad = run_ludus("check", "check.test_checks:Weak", env={"PYTHONPATH": "tests"})
    assert bad.returncode == 1 and "1 failed" in bad.stdout


async def test_every_check_has_a_finding_and_advice() -> None:
    report = await run_checks("catch", seeds=2)
    assert [finding.check for finding in report.findings] == list(CHECKS)
    assert all(advice for _, advice in CHECKS.values())


@pytest.mark.parametrize(("name", "value"), [("seeds", 1), ("sessions", 0)])
async def test_too_few_seeds_or_sessions_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"`{name}`"):
        await run_checks("catch", **{name: value})  # type: ignore[arg-type]


def test_json_report_can_be_parsed() -> None:
    done = run_ludus("check", "catch", "--json")
    assert CheckReport.model_validate_json(done.stdout).passed


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1"])
def test_unreachable_server_is_a_one_line_error(url: str) -> None:
    done = run_ludus("check", url)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert url in done.stderr and "Connection refused" in done.stderr
    assert "aiohttp" not in done.stderr and "ssl" not in done.stderr


class ReturnsText(Counter):
    """Its oracle returns a text."""

    def oracle(self) -> Any:
        return "add 3"


class CallsUnknownTool(Counter):
    """Its oracle calls a tool that there is not."""

    def oracle(self) -> ToolCall:
        return ToolCall(name="subtract", arguments={"number": 1})


class CallsWrongly(Counter):
    """Its oracle calls with wrong arguments."""

    def oracle(self) -> ToolCall:
        return ToolCall(name="add", arguments={"amount": 1})


class Glitters(Counter):
    """Observations with a lone surrogate and with control characters."""

    def reset(self, *, seed: int | None = None, goal: int | None = None) -> str:
        return super().reset(seed=seed, goal=goal) + "\ud800 \x1b[31m"


class TextProgress(Counter):
    """Its progress is a text."""

    def progress(self) -> Any:
        return "half"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (ReturnsText, "returned 'add 3'"),
        (CallsUnknownTool, "subtract"),
        (CallsWrongly, "was refused"),
        (TextProgress, "returned 'half'"),
    ],
)
async def test_a_wrong_oracle_or_progress_is_named(environment: type, words: str) -> None:
    report = await run_checks(f"check.test_checks:{environment.__name__}")
    details = " ".join(finding.detail for finding in report.failures)
    assert words in details
    if environment is TextProgress:
        assert any("progress()" in finding.advice for finding in report.failures)


def test_observations_cannot_steer_the_terminal() -> None:
    done = run_ludus("check", "check.test_checks:Glitters", env=CLEAN_ENV)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b[31m" not in done.stdout and "\\x1b[31m" in done.stdout
