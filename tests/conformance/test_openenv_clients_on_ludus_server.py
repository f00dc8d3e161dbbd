"""OpenEnv's own clients and validator, unchanged, against `ludus serve`."""

import shutil
import subprocess
import sys

import pytest
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient
from world import Counter, LineWorld, Measured, serving, until

from conformance.openenv_environments import (
    CalculatorEnvironment,
    CheapGuessEnvironment,
    CountedStepsEnvironment,
    CountingEnvironment,
    GuessAction,
    GuessEnvironment,
    LaterGuessEnvironment,
    OneThreadGuessEnvironment,
    ThreadedGuessEnvironment,
)
from ludus.client.session import LocalSession
from ludus.environment.introspection import build_env_spec
from ludus.envs.python import Python
from ludus.envs.python.tasks import TASKS


async def test_the_generic_client_plays_a_single_tool_environment() -> None:
    with serving(Counter) as served:
        async with GenericEnvClient(base_url=served.url) as client:
            first = await client.reset(seed=3, goal=2, episode_id="mine")
            assert first.observation["text"] == "Reach 2."
            assert (await client.state())["episode_id"] == "mine"
            result = await client.step({"number": 2})
            assert (result.reward, result.done) == (1.0, True)
            assert result.observation["text"] == "Total 2."


async def test_the_generic_client_plays_a_typed_environment_and_gets_metadata() -> None:
    with serving(LineWorld) as served:
        async with GenericEnvClient(base_url=served.url) as client:
            await client.reset(start=8)
            result = await client.step({"steps": 2})
            assert (result.observation["position"], result.done) == (10, True)
            with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
                await client.step({"stride": 2})


async def test_the_generic_client_gets_progress_in_the_metadata() -> None:
    with serving(Measured) as served:
        async with GenericEnvClient(base_url=served.url) as client:
            first = await client.reset(goal=4)
            assert first.metadata == first.observation["metadata"] == {"progress": 0.0}
            result = await client.step({"number": 3})
            assert result.metadata == result.observation["metadata"] == {"progress": 0.75}


def test_the_generic_client_plays_without_await() -> None:
    with serving("echo") as served, GenericEnvClient(base_url=served.url).sync() as client:
        client.reset()
        assert client.step({"message": "hi"}).observation["echoed_message"] == "hi"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_both_clients_run_and_submit_code() -> None:
    solution = TASKS["digit_sum"].solution_code
    with serving(Python) as served:
        async with MCPToolClient(base_url=served.url) as tools:
            await tools.reset(seed=1, task="digit_sum")
            assert [tool.name for tool in await tools.list_tools()] == ["run", "submit"]
            assert "42" in await tools.call_tool("run", code="print(42)")
        async with GenericEnvClient(base_url=served.url) as client:
            await client.reset(seed=1, task="digit_sum")
            result = await client.step({"code": solution})
            assert (result.reward, result.done) == (1.0, True)


async def test_the_tool_client_lists_and_calls_and_steps_on_one_session() -> None:
    with serving("echo") as served:
        async with MCPToolClient(base_url=served.url) as client:
            await client.reset(seed=1)
            names = [tool.name for tool in await client.list_tools()]
            assert names == ["echo_message", "echo_with_length"]
            assert await client.call_tool("echo_message", message="hello") == "hello"
            answer = await client.call_tool("echo_with_length", message="four")
            assert answer == {"message": "four", "length": 4}
            with pytest.raises(RuntimeError, match="'shout'"):
                await client.call_tool("shout", message="x")
            stepped = await client.step(
                CallToolAction(tool_name="echo_message", arguments={"message": "again"})
            )
            assert stepped.observation.result == "again"
            assert stepped.reward == pytest.approx(0.5)
            # Two calls over HTTP and one over the socket, all in the same episode.
            assert (await client.state()).step_count == 3
        assert len(served.sessions) == 0


@pytest.mark.parametrize("environment", [GuessEnvironment, CheapGuessEnvironment])
async def test_a_class_of_theirs_is_served_unchanged(environment: type) -> None:
    with serving(environment) as served:
        async with GenericEnvClient(base_url=served.url) as client:
            first = await client.reset(seed=14, episode_id="e")
            assert first.observation["text"] == "Guess from 0 to 9."
            assert first.metadata == {"seed": 14}
            result = await client.step(GuessAction(number=4).model_dump())
            assert (result.reward, result.done) == (1.0, True)
            assert await client.state() == {"episode_id": "e", "step_count": 1}


async def test_async_methods_of_a_class_of_theirs_are_the_ones_that_run() -> None:
    with serving(LaterGuessEnvironment) as served:
        async with GenericEnvClient(base_url=served.url) as client:
            assert (await client.reset(seed=3)).observation["text"] == "Awaited 3."
            assert (await client.step({"number": 1})).observation["text"] == "Awaited."


@pytest.mark.parametrize(
    ("environment", "together"),
    [(ThreadedGuessEnvironment, 2), (OneThreadGuessEnvironment, 1)],
)
async def test_a_class_of_theirs_keeps_to_its_thread_from_birth_to_close(
    environment: type[ThreadedGuessEnvironment], together: int
) -> None:
    environment.threads.clear()
    with serving(environment) as served:
        async with (
            GenericEnvClient(base_url=served.url) as one,
            GenericEnvClient(base_url=served.url) as other,
        ):
            for client in (one, other, one, other):
                await client.reset(seed=1)
                await client.step({"number": 1})
        await until(lambda: len(served.sessions) == 0)
    assert [len(threads) for threads in environment.threads.values()] == [1, 1]
    assert len(set.union(*environment.threads.values())) == together


async def test_an_mcp_class_of_theirs_is_served_unchanged() -> None:
    with serving(CalculatorEnvironment) as served:
        async with MCPToolClient(base_url=served.url) as client:
            await client.reset()
            assert {tool.name for tool in await client.list_tools()} == {"add", "shout"}
            assert await client.call_tool("add", a=2, b=3) == 5
            assert await client.call_tool("shout", word="oi") == "OI"


@pytest.mark.parametrize("environment", [CountingEnvironment, CountedStepsEnvironment])
async def test_tools_keep_the_state_of_their_connection_for_the_whole_session(
    environment: type,
) -> None:
    with serving(environment) as served:
        async with MCPToolClient(base_url=served.url) as client:
            await client.reset()
            assert [await client.call_tool("count") for _ in range(2)] == [1, 2]
            stepped = await client.step(CallToolAction(tool_name="count", arguments={}))
            assert stepped.observation.result["data"] == 3
        async with MCPToolClient(base_url=served.url) as other:
            assert await other.call_tool("count") == 1
        await until(lambda: len(served.sessions) == 0)
    async with LocalSession(build_env_spec(environment)) as session:
        await session.reset()
        assert [(await session.call("count")).content for _ in range(3)] == ["1", "2", "3"]
        mcp_client = session.runner.environment.mcp_client
        assert mcp_client.is_connected()
    assert not mcp_client.is_connected()


async def test_a_class_of_theirs_that_overrides_step_alone_runs_its_step() -> None:
    with serving(CountedStepsEnvironment) as served:
        async with GenericEnvClient(base_url=served.url) as client:
            await client.reset()
            action = {"type": "call_tool", "tool_name": "add", "arguments": {"a": 2, "b": 3}}
            assert (await client.step(action)).observation["result"]["data"] == 5
            assert (await client.state())["step_count"] == 1


@pytest.mark.parametrize("environment", ["echo", pytest.param("catch", marks=pytest.mark.slow)])
def test_openenv_validate_finds_nothing_wrong(environment: str) -> None:
    with serving(environment) as served:
        done = subprocess.run(
            [sys.executable, "-m", "openenv.cli", "validate", "--url", served.url],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
