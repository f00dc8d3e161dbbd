"""A live environment: rewards, content, threads and tasks."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from typing import Any

import pytest
from world import Counter, Measured, Slow

from ludus import Image, Text, ToolEnvironment, tool
from ludus.client.endpoint import LocalEndpoint
from ludus.client.session import LocalSession
from ludus.data.messages import content_text
from ludus.environment.introspection import build_env_spec
from ludus.environment.runner import EnvironmentRunner
from ludus.errors import ExecutionFailed, FactoryFailed, InvalidAction
from ludus.protocol.types import TextObservation


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
    def leave(self, reward: float) -> TextObservation:
        """Be paid and go.

        Args:
            reward: How much.
        """
        self.award(reward)
        return TextObservation(text="gone", done=True)

    @tool
    def crash(self) -> str:
        """Fail."""
        raise ZeroDivisionError("oops")

    @tool
    def show(self) -> list[Text | Image]:
        """Show a picture."""
        return [Text(text="Here:"), Image.from_bytes(b"\x89PNG")]


def endpoint(cls: type, **settings: Any) -> LocalEndpoint:
    return LocalEndpoint(build_env_spec(cls), **settings)


async def test_pictures_reach_the_agent_as_blocks() -> None:
    async with endpoint(Odd).session() as session:
        for result in (await session.reset(), await session.call("show")):
            content = result.content
            assert not isinstance(content, str)
            assert [block.type for block in content] == ["text", "image"]
            assert content_text(content).endswith("[image/png]")


async def test_awards_of_one_call_add_up_and_keep_their_parts() -> None:
    async with endpoint(Odd).session() as session:
        await session.reset()
        result = await session.call("pay", {"reward": 3})
        assert (result.reward, result.rewards) == (3.0, {"half": 1.5, "rest": 1.5})
        assert (await session.call("show")).reward is None


async def test_an_award_keeps_the_end_that_an_observation_reports() -> None:
    async with endpoint(Odd).session() as session:
        await session.reset()
        result = await session.call("leave", {"reward": 2})
        assert (result.reward, result.done) == (2.0, True)


class Unmeasured(Measured):
    """Returns what it was built with from `progress()`, in a thread."""

    blocking = True
    value: float | None = None

    def progress(self) -> float | None:
        assert threading.current_thread() is not threading.main_thread()
        return self.value


async def test_progress_is_added_to_the_metadata_of_results() -> None:
    async with endpoint(Measured).session() as session:
        first = await session.reset(goal=4)
        assert (first.progress, first.metadata) == (0.0, {"progress": 0.0})
        second = await session.call("add", {"number": 3})
        assert (second.progress, second.content) == (0.75, "Total 3.")
        assert (await session.call("add", {"number": -1})).progress == 0.75


async def test_progress_runs_where_the_step_runs_and_none_is_left_out() -> None:
    async with endpoint(Unmeasured).session() as session:
        result = await session.reset(goal=4)
        assert (result.progress, result.metadata) == (None, {})


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan"), "0.5"])
@pytest.mark.parametrize("base", [Unmeasured, Measured])
async def test_progress_outside_its_bounds_is_the_authors_error(base: type, value: Any) -> None:
    cls = type("Broken", (base,), {"value": value, "progress": lambda self: self.value})
    async with endpoint(cls).session() as session:
        with pytest.raises(ExecutionFailed, match=r"test_runner\.py:\d+: progress\(\)") as caught:
            await session.reset(goal=4)
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize("reward", ["nan", "inf"])
async def test_a_reward_that_is_no_finite_number_is_the_environments_fault(reward: str) -> None:
    runner = EnvironmentRunner(build_env_spec(Odd))
    await runner.start()
    await runner.reset({})
    with pytest.raises(ExecutionFailed, match=reward):
        await runner.call("pay", {"reward": float(reward)})


async def test_a_crash_is_an_error_and_not_a_result() -> None:
    async with endpoint(Odd).session() as session:
        await session.reset()
        with pytest.raises(ExecutionFailed, match="ZeroDivisionError: oops"):
            await session.call("crash")
        assert (await session.call("show")).content


class Leaving(ToolEnvironment):
    """Ends the process where it can, as code that a model wrote may."""

    def reset(self, *, leave: bool = False) -> str:
        if leave:
            sys.exit(3)
        return "Leave."

    @tool
    def leave(self) -> str:
        """Leave."""
        sys.exit("enough")

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        sys.exit(4)

    def oracle(self) -> None:
        sys.exit(5)

    def close(self) -> None:
        sys.exit(6)


class LeavingLater(Leaving):
    """The same, after a while."""

    @tool
    async def leave_later(self) -> str:
        """Leave."""
        await asyncio.sleep(0)
        sys.exit("enough")


class LeavingAside(Leaving):
    """The same in a thread."""

    blocking = True


@pytest.mark.parametrize(
    ("cls", "way"), [(Leaving, "leave"), (LeavingLater, "leave_later"), (LeavingAside, "leave")]
)
async def test_an_exit_costs_one_call_and_not_the_process(cls: type, way: str) -> None:
    runner = EnvironmentRunner(build_env_spec(cls))
    await runner.start()
    with pytest.raises(ExecutionFailed, match="SystemExit: 3"):
        await runner.reset({"leave": True})
    with pytest.raises(ExecutionFailed, match="SystemExit: 4"):
        await runner.reset({"split": "train", "index": 0})
    await runner.reset({})
    with pytest.raises(ExecutionFailed, match="SystemExit: enough"):
        await runner.call(way, {})
    with pytest.raises(ExecutionFailed, match="SystemExit: 5"):
        await runner.call_method("oracle")
    await runner.close()


async def test_an_exit_on_the_quick_way_is_an_error_too() -> None:
    runner = EnvironmentRunner(build_env_spec(Leaving))
    await runner.start()
    with pytest.raises(ExecutionFailed, match="SystemExit: 3"):
        runner.run_instantly(runner.reset({"leave": True}))


async def test_an_environment_that_cannot_be_built_without_leaving_is_named() -> None:
    class Stillborn(Leaving):
        """Leaves at once."""

        def __init__(self) -> None:
            sys.exit(1)

    with pytest.raises(FactoryFailed, match="SystemExit: 1"):
        await EnvironmentRunner(build_env_spec(Stillborn)).start()


async def test_a_signal_that_comes_during_a_step_is_no_fault_of_it() -> None:
    class Slowly(Leaving):
        """Is interrupted by whoever wants to end the process."""

        def reset(self, *, leave: bool = False) -> str:
            signal.raise_signal(signal.SIGTERM)
            return "too late"

    def hear(number: int, frame: object) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, hear)
    try:
        async with endpoint(Slowly).session() as session:
            with pytest.raises(SystemExit, match="143"):
                await session.reset()
    finally:
        signal.signal(signal.SIGTERM, before)


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
        result = await asyncio.wait_for(session.call("sleep", {"seconds": 0}), 30)
        assert result.reward == 1.0


async def _hang() -> None:
    async with LocalSession(build_env_spec(Slow)) as session:
        await session.reset()
        # Only now: the reset of so many may take as long on a busy machine.
        session.runner.step_timeout = 0.5
        with pytest.raises(ExecutionFailed):
            await session.call("sleep", {"seconds": 60.0})


class SlowToBuild(Counter):
    """Takes a while to build, and must be closed."""

    blocking = True
    release = threading.Event()
    closed = threading.Event()

    def __init__(self) -> None:
        type(self).release.wait(10)

    def close(self) -> None:
        type(self).closed.set()


async def test_an_environment_whose_client_has_gone_is_closed_once_it_is_built() -> None:
    runner = EnvironmentRunner(build_env_spec(SlowToBuild))
    start = asyncio.create_task(runner.start())
    await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await runner.close()
    assert not SlowToBuild.closed.is_set()
    SlowToBuild.release.set()
    assert await asyncio.to_thread(SlowToBuild.closed.wait, 10)
