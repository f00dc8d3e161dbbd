"""A live environment: rewards, content, threads and tasks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from world import Counter, Slow

from ludus import Image, Text, ToolEnvironment, tool
from ludus.client.endpoint import LocalEndpoint
from ludus.data.content import plain
from ludus.environment.host import Host
from ludus.environment.inspection import contract_of
from ludus.errors import ExecutionFailed, InvalidAction


class Odd(ToolEnvironment):
    """Returns what it is asked for."""

    def reset(self, *, seed: int = 0) -> list[Text | Image]:
        return [Text(text="Look:"), Image.from_bytes(b"\x89PNG")]

    @tool
    def pay(self, reward: float) -> str:
        """Be paid.

        Args:
            reward: How much.
        """
        self.award(reward / 2, half=reward / 2)
        self.award(reward / 2, rest=reward / 2)
        return "paid"

    @tool
    def crash(self) -> str:
        """Fail."""
        raise ZeroDivisionError("oops")

    @tool
    def show(self) -> list[Text | Image]:
        """Show a picture."""
        return [Text(text="Here:"), Image.from_bytes(b"\x89PNG")]


def endpoint(cls: type, **settings: Any) -> LocalEndpoint:
    return LocalEndpoint(contract_of(cls), **settings)


async def test_pictures_reach_the_agent_as_blocks() -> None:
    async with endpoint(Odd).session() as session:
        for result in (await session.reset(), await session.call("show")):
            content = result.content
            assert not isinstance(content, str)
            assert [block.type for block in content] == ["text", "image"]
            assert plain(content).endswith("[image/png]")


async def test_awards_of_one_call_add_up_and_keep_their_parts() -> None:
    async with endpoint(Odd).session() as session:
        await session.reset()
        result = await session.call("pay", {"reward": 3})
        assert (result.reward, result.rewards) == (3.0, {"half": 1.5, "rest": 1.5})
        assert (await session.call("show")).reward is None


@pytest.mark.parametrize("reward", ["nan", "inf"])
async def test_a_reward_that_is_no_finite_number_is_the_environments_fault(reward: str) -> None:
    host = Host(contract_of(Odd))
    await host.start()
    await host.reset({})
    with pytest.raises(ExecutionFailed, match="a reward is a finite number"):
        await host.call("pay", {"reward": float(reward)})


async def test_a_crash_is_an_error_and_not_a_result() -> None:
    async with endpoint(Odd).session() as session:
        await session.reset()
        with pytest.raises(ExecutionFailed, match="ZeroDivisionError: oops"):
            await session.call("crash")
        assert (await session.call("show")).content


async def test_task_arguments_are_validated_by_their_hints() -> None:
    async with endpoint(Counter).session() as session:
        assert (await session.reset(goal="12")).content == "Reach 12."
        with pytest.raises(InvalidAction, match="argument 'goal'"):
            await session.reset(goal="twelve")


async def test_a_blocking_environment_stays_off_the_loop_and_a_cheap_one_on_it() -> None:
    seen: dict[str, str] = {}

    class Where(Counter):
        """Tells its thread."""

        def reset(self, **task: Any) -> str:
            seen[type(self).__name__] = threading.current_thread().name
            return ""

    class WhereBlocking(Where):
        """The same, off the loop."""

        blocking = True

    for cls in (Where, WhereBlocking):
        async with endpoint(cls).session() as session:
            await session.reset()
    assert seen["Where"] == threading.main_thread().name
    assert seen["WhereBlocking"] == "ludus-step"


async def test_hung_steps_do_not_use_up_the_threads() -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(_hang())
    async with endpoint(Slow).session() as session:
        await session.reset()
        result = await asyncio.wait_for(session.call("sleep", {"seconds": 0}), 2)
        assert result.reward == 1.0


async def _hang() -> None:
    async with endpoint(Slow, step_timeout=0.5).session() as session:
        await session.reset()
        with pytest.raises(ExecutionFailed):
            await session.call("sleep", {"seconds": 4.0})
