"""One behaviour, in process and over a socket."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from world import Counter, LineWorld, Slow, Two, serving

from ludus.client.endpoint import LocalEndpoint, RemoteEndpoint
from ludus.client.session import Session
from ludus.environment.introspection import build_env_spec
from ludus.errors import (
    ConnectFailed,
    ExecutionFailed,
    InvalidAction,
    SessionError,
    SessionLost,
)
from ludus.protocol.types import StepResult

Opener = Callable[..., Session]


@pytest.fixture(params=["in process", "over a socket"])
def open_session(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """A function that opens a session on an environment class, one way or the other."""
    with ExitStack() as stack:

        def opened(cls: type, **settings: Any) -> Session:
            if request.param == "in process":
                return LocalEndpoint(build_env_spec(cls), **settings).session()
            return RemoteEndpoint(stack.enter_context(serving(cls, **settings)).url).session()

        yield opened


def mistake(result: StepResult[Any]) -> str:
    assert result.error is not None
    return result.error


async def test_an_episode_is_played_to_its_reward(open_session: Opener) -> None:
    async with open_session(Counter) as session:
        first = await session.reset(goal=4)
        assert first.content == "Reach 4."
        assert first.reward is None and not first.done
        middle = await session.call("add", {"number": 3})
        assert (middle.content, middle.reward, middle.done) == ("Total 3.", 0.0, False)
        last = await session.call("add", {"number": 1})
        assert (last.content, last.reward, last.done) == ("Total 4.", 1.0, True)
        state = await session.state()
        assert state["step_count"] == 2 and state["episode_id"]


async def test_a_models_mistakes_come_back_as_errors_and_cost_nothing(open_session: Opener) -> None:
    async with open_session(Counter) as session:
        await session.reset(goal=4)
        assert "Did you mean 'add'" in mistake(await session.call("ad", {"number": 1}))
        assert "'number' is missing" in mistake(await session.call("add"))
        assert "unknown argument 'numbr'" in mistake(await session.call("add", {"numbr": 1}))
        assert "above zero" in mistake(await session.call("add", {"number": 0}))
        coerced = await session.call("add", {"number": "4"})
        assert coerced.done and coerced.reward == 1.0


async def test_steps_outside_an_episode_are_refused(open_session: Opener) -> None:
    async with open_session(Counter) as session:
        with pytest.raises(ExecutionFailed, match="before the first step"):
            await session.call("add", {"number": 1})
        await session.reset(goal=1)
        await session.call("add", {"number": 1})
        with pytest.raises(ExecutionFailed, match="The episode is over"):
            await session.call("add", {"number": 1})
        assert (await session.reset(goal=2)).content == "Reach 2."


async def test_an_unknown_task_argument_is_named(open_session: Opener) -> None:
    async with open_session(Counter) as session:
        with pytest.raises(InvalidAction, match="Did you mean 'goal'"):
            await session.reset(gaol=3)


async def test_a_task_can_be_chosen_by_split_and_index(open_session: Opener) -> None:
    async with open_session(Counter) as session:
        by_index = await session.reset(split="test", index=3)
        by_seed = await session.reset(seed=1_000_003)
        assert by_index.content == by_seed.content
        with pytest.raises(InvalidAction, match="No task 99999999"):
            await session.reset(split="test", index=99999999)


async def test_several_tools_are_called_by_name(open_session: Opener) -> None:
    async with open_session(Two) as session:
        await session.reset(seed=1)
        assert [tool.name for tool in session.tools] == ["double", "leave"]
        assert (await session.call("double", {"number": 21})).content == '{"doubled": 42}'
        last = await session.call("leave", {"word": "ciao"})
        assert (last.content, last.reward, last.done) == ("ciao", 1.0, True)


async def test_a_typed_environment_gets_its_tool_from_its_action(open_session: Opener) -> None:
    async with open_session(LineWorld) as session:
        assert [tool.name for tool in session.tools] == ["move"]
        await session.reset(start=2)
        result = await session.call("move", {"steps": "3"})
        assert result.observation["position"] == 5
        with pytest.raises(InvalidAction) as caught:
            await session.step({"steps": "many"})
        assert caught.value.code == "VALIDATION_ERROR"
        assert caught.value.details["errors"][0]["loc"] == ["steps"] or caught.value.details[
            "errors"
        ][0]["loc"] == ("steps",)
        assert (await session.state())["position"] == 5


async def test_a_step_that_hangs_ends_the_session(open_session: Opener) -> None:
    async with open_session(Slow, step_timeout=1) as session:
        await session.reset()
        with pytest.raises(SessionError, match=r"longer than 1 s"):
            await session.call("sleep", {"seconds": 5.0})
        with pytest.raises(SessionError):
            await session.call("sleep", {"seconds": 0.0})


async def test_nobody_at_the_address_is_one_clear_error() -> None:
    with pytest.raises(ConnectFailed, match=r"Cannot connect to http://127\.0\.0\.1:1 "):
        await RemoteEndpoint("http://127.0.0.1:1").session().open()


async def test_a_closed_session_stays_closed(open_session: Opener) -> None:
    session = open_session(Counter)
    await session.open()
    await session.close()
    await session.close()
    with pytest.raises((SessionLost, ExecutionFailed)):
        await session.reset()
