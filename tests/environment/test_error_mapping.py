"""Exceptions in an author's code: lines with file and line in this process, never on the wire."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from world import Counter, serving

from ludus import ToolCall, tool
from ludus.agents.oracle import OracleAgent
from ludus.client.endpoint import connect
from ludus.client.session import LocalSession
from ludus.environment.faults import capture_faults, report_once
from ludus.environment.introspection import build_env_spec
from ludus.environment.runner import EnvironmentRunner
from ludus.errors import ExecutionFailed, FactoryFailed
from ludus.rollout import Assignment, run_episode


def divide(number: int) -> float:
    return number / 0


class Broken(Counter):
    """Breaks in its tool and in its oracle."""

    @tool
    def add(self, number: int) -> str:
        """Add a number.

        Args:
            number: How much to add.
        """
        return str(divide(number))

    def oracle(self) -> ToolCall:
        raise LookupError("no idea")


class Unbuilt(Counter):
    """Cannot be built."""

    def __init__(self) -> None:
        raise RuntimeError("out of order\nand broken")


class Silent(Counter):
    """Shows nothing."""

    def reset(self, *, seed: int | None = None, goal: int | None = None) -> str:
        return None  # type: ignore[return-value]


def place(code: str, function: str) -> str:
    """Where a line of this file is, as an author is lines."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"test_error_mapping.py:{lines.index(code) + 1} in {function}"


DIVIDE = place("    return number / 0", "divide")


async def test_the_innermost_line_of_the_author_is_told() -> None:
    async with LocalSession(build_env_spec(Broken)) as session:
        await session.reset(seed=1)
        with pytest.raises(ExecutionFailed) as caught:
            await session.call("add", {"number": 1})
    assert str(caught.value).endswith(f"{DIVIDE}: ZeroDivisionError: division by zero")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_constructor_that_raises_is_one_line() -> None:
    with pytest.raises(FactoryFailed) as caught:
        await LocalSession(build_env_spec(Unbuilt)).open()
    where = place('        raise RuntimeError("out of order\\nand broken")', "__init__")
    assert str(caught.value).endswith(f"{where}: RuntimeError: out of order and broken")


async def test_a_reset_that_returns_nothing_is_an_error() -> None:
    async with LocalSession(build_env_spec(Silent)) as session:
        with pytest.raises(ExecutionFailed, match=r"test_error_mapping\.py:\d+: .*None"):
            await session.reset(seed=1)


async def test_an_oracle_that_raises_is_told_with_its_line() -> None:
    async with LocalSession(build_env_spec(Broken)) as session:
        episode = await run_episode(
            session, OracleAgent(), Assignment.of(f"{__name__}:Broken", seed=1)
        )
    assert episode.error is not None
    where = place('        raise LookupError("no idea")', "oracle")
    assert episode.error.message.endswith(f"{where}: LookupError: no idea")


async def test_the_wire_carries_no_file_and_no_line() -> None:
    with serving(Broken) as served:
        async with connect(served.url).session() as session:
            await session.reset(seed=1)
            with pytest.raises(ExecutionFailed) as caught:
                await session.call("add", {"number": 1})
    assert str(caught.value) == "ZeroDivisionError: division by zero"


def test_a_fault_is_logged_once_with_the_traceback_of_the_author() -> None:
    lines: list[str] = []
    traces: list[str] = []

    async def fail() -> None:
        runner = EnvironmentRunner(build_env_spec(Broken))
        await runner.start()
        for number in (1, 2, 3):
            await runner.reset({"seed": number})
            with pytest.raises(ExecutionFailed):
                await runner.call("add", {"number": number})

    with (
        capture_faults(report_once(lines.append)),
        capture_faults(report_once(traces.append, tracebacks=True)),
    ):
        asyncio.run(fail())
    asyncio.run(fail())
    (line,), (trace,) = lines, traces
    assert DIVIDE in line
    assert trace.startswith("Traceback") and "return number / 0" in trace
    assert "runner.py" not in trace
