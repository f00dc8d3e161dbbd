"""Random actions between the agent's own: legal, reproducible and recorded."""

from __future__ import annotations

import random

import pytest
from world import serving

from ludus import ToolEnvironment, connect, tool
from ludus.agents.agent import Agent
from ludus.agents.combined_agent import ExploringAgent
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import ScriptedAgent
from ludus.data.episode import Episode
from ludus.data.tool_schema import ToolCall
from ludus.rollout import Assignment, run_episode

LINE = f"{__name__}:Line"
NUM_TURNS = 12


class Line(ToolEnvironment):
    """Twelve moves along a line. Only the move that `next_move` names is legal."""

    num_built = 0

    def __init__(self) -> None:
        Line.num_built += 1

    def reset(self, *, seed: int | None = None) -> str:
        self.steps = 0
        self.illegal = 0
        return "Go."

    def next_move(self) -> int:
        return 100 + self.steps

    @tool
    def move(self, number: int) -> str:
        """Make a move.

        Args:
            number: The move.
        """
        self.illegal += number not in (0, self.next_move())
        self.steps += 1
        if self.steps < NUM_TURNS:
            return "Go on."
        return self.finish(1.0, "Over.", illegal=float(self.illegal))

    def oracle(self) -> ToolCall:
        return ToolCall(name="move", arguments={"number": 0})

    def random_action(self, rng: random.Random) -> ToolCall:
        return ToolCall(name="move", arguments={"number": self.next_move()})


async def played(
    agent: Agent, *, spec: str = LINE, seed: int = 1, member: int = 0, url: str | None = None
) -> Episode:
    assignment = Assignment("episode", spec, {"seed": seed}, seed, "group", member)
    async with connect(url or spec).session() as session:
        return await run_episode(session, agent, assignment)


def numbers(episode: Episode) -> list[str]:
    return [call.function.arguments for each in episode.messages for call in each.tool_calls or ()]


async def test_random_turns_are_recorded_and_follow_the_state() -> None:
    episode = await played(ExploringAgent(OracleAgent(), 0.5))
    explored = [turn for turn, each in enumerate(numbers(episode)) if each != '{"number": 0}']
    assert episode.explored_turns == tuple(explored)
    assert 0 < len(explored) < NUM_TURNS
    assert episode.rewards == {"illegal": 0.0}
    assert episode.agent == {"provider": "oracle", "explore": 0.5}
    assert Episode.from_line(episode.to_line()) == episode


async def test_random_turns_are_the_same_again_and_others_in_other_members() -> None:
    agent = ExploringAgent(OracleAgent(), 0.5)
    first = await played(agent)
    assert first.explored_turns == (await played(agent)).explored_turns
    others = {(await played(agent, member=member)).explored_turns for member in range(1, 5)}
    assert others != {first.explored_turns}


async def test_a_server_of_an_installed_environment_gets_its_own_random_actions() -> None:
    with serving(Line) as served:
        there = await played(ExploringAgent(OracleAgent(), 0.5), url=served.url)
    here = await played(ExploringAgent(OracleAgent(), 0.5))
    assert numbers(there) == numbers(here) and there.explored_turns == here.explored_turns


@pytest.mark.parametrize("spec", ["catch", "an_environment_that_is_installed_nowhere"])
async def test_without_random_actions_of_its_own_the_schemas_say_what_is_valid(spec: str) -> None:
    scripted = ScriptedAgent(*[ToolCall(name="move", arguments={"direction": "stay"})] * 9)
    assignment = Assignment("episode", spec, {"seed": 1}, 1, "group")
    async with connect("catch").session() as session:
        episode = await run_episode(session, ExploringAgent(scripted, 0.9), assignment)
    assert episode.done and episode.malformed_calls == 0
    assert {*numbers(episode)} > {'{"direction": "left"}', '{"direction": "right"}'}


async def test_an_episode_without_random_turns_has_none_in_its_line() -> None:
    episode = await played(OracleAgent())
    assert b"explored_turns" not in episode.to_line()
    assert b"tutor_replies" not in episode.to_line()


async def test_random_actions_are_those_of_the_environment_that_is_played() -> None:
    """In this process no copy is made, which would have to follow the agent."""
    built_before = Line.num_built
    episode = await played(ExploringAgent(OracleAgent(), 0.5))
    assert episode.explored_turns and episode.rewards["illegal"] == 0
    assert Line.num_built == built_before + 1
