"""Echo and catch."""

from __future__ import annotations

import asyncio

import pytest

from ludus import connect
from ludus.agents.oracle import OracleEnvironment
from ludus.environment.registry import find_environment
from ludus.errors import ExecutionFailed


async def oracle_return(spec: str, seed: int) -> float:
    oracle = OracleEnvironment(find_environment(spec))
    await oracle.reset({"seed": seed})
    async with connect(spec).session() as session:
        result = await session.reset(seed=seed)
        total = 0.0
        while not result.done and (call := await oracle.propose()) is not None:
            await oracle.follow(call)
            result = await session.call(call.name, call.arguments)
            total += result.reward or 0.0
    await oracle.close()
    return total


@pytest.mark.parametrize(("spec", "top"), [("catch", 1.0), ("echo", 10.0)])
@pytest.mark.parametrize("seeds", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_the_oracle_reaches_the_top_on_every_seed(spec: str, top: float, seeds: int) -> None:
    async def play_all() -> list[float]:
        return [await oracle_return(spec, seed) for seed in range(seeds)]

    assert asyncio.run(play_all()) == [pytest.approx(top)] * seeds


async def test_the_first_message_of_catch_says_what_the_symbols_are() -> None:
    async with connect("catch").session() as session:
        first = str((await session.reset(seed=1, rows=4, columns=3)).content)
    rules, _, picture = first.partition("\n\n")
    assert "o is the ball" in rules and "= is the paddle" in rules
    assert picture.splitlines()[0].count("o") == 1 and picture.splitlines()[3] == ". = ."


async def test_the_ball_is_drawn_over_the_paddle() -> None:
    async with connect("catch").session() as session:
        for seed in range(5):
            await session.reset(seed=seed, rows=2, columns=2)
            last = await session.call("move", {"direction": "left"})
            if last.reward == 1.0:
                break
        assert str(last.content).splitlines()[1:3] == [". .", "o ."]


async def test_a_direction_that_is_none_moves_nothing() -> None:
    async with connect("catch").session() as session:
        before = await session.reset(seed=1)
        for wrong in ("up", "LEFT", "", 1, None):
            result = await session.call("move", {"direction": wrong})
            assert result.error is not None and "'left', 'stay' or 'right'" in result.error
        after = await session.call("move", {"direction": "stay"})
        assert "Rows left to fall: 9" in str(before.content)
        assert "Rows left to fall: 8" in str(after.content)


async def test_the_ball_falls_and_the_paddle_stops_at_the_wall() -> None:
    async with connect("catch").session() as session:
        await session.reset(seed=1, rows=4, columns=3)
        for _ in range(2):
            middle = await session.call("move", {"direction": "left"})
        assert str(middle.content).splitlines()[3].startswith("=")
        last = await session.call("move", {"direction": "left"})
        assert last.done and last.rewards == {"caught": last.reward}


async def test_a_grid_that_cannot_be_crossed_is_refused() -> None:
    async with connect("catch").session() as session:
        with pytest.raises(ExecutionFailed, match="too few to cross"):
            await session.reset(rows=3, columns=50)


async def test_echo_hears_both_tools_and_a_bare_action() -> None:
    async with connect("echo").session() as session:
        await session.reset(seed=1, limit=5)
        said = await session.call("echo_message", {"message": "four"})
        assert said.content == "four" and said.reward == pytest.approx(0.4)
        counted = await session.call("echo_with_length", {"message": "longer than five"})
        assert counted.observation["result"] == {"message": "longer than five", "length": 16}
        assert counted.reward == pytest.approx(0.5)
        bare = await session.step({"message": "hi"})
        assert bare.observation["echoed_message"] == "hi" and not bare.done


async def test_echo_rewards_a_longer_message_more_at_any_length() -> None:
    async with connect("echo").session() as session:
        await session.reset(seed=1)
        lengths = (99, 101, 2_000, 20_000)
        earned = [(await session.step({"message": "o" * each})).reward for each in lengths]
    assert earned == [pytest.approx(0.1 * each) for each in lengths]
