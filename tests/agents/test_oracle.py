"""The oracle answers in every state, varies with its episode, and shows its working if asked."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from ludus import ToolEnvironment, connect, tool
from ludus.agents.agent import EpisodeContext, build_tool_call_message
from ludus.agents.oracle import OracleAgent, OracleEnvironment
from ludus.agents.scripted import ScriptedAgent
from ludus.data.episode import Episode
from ludus.data.messages import Call, Function, Message
from ludus.data.tool_schema import ToolCall
from ludus.environment.registry import find_environment
from ludus.rollout import Assignment, run_episode

CHOICES = f"{__name__}:Choices"


class Choices(ToolEnvironment):
    """Three picks; even numbers are equally good."""

    num_built = 0

    def __init__(self) -> None:
        Choices.num_built += 1

    def reset(self, *, seed: int | None = None) -> str:
        self.left = 3
        return "Pick an even number from 0 to 9."

    @tool
    def pick(self, number: int) -> str:
        """Pick a number.

        Args:
            number: The number.
        """
        self.left -= 1
        return "Next." if self.left else self.finish(1.0, "Over.")

    def oracle(self, *, rng: random.Random | None = None, working: bool = False) -> ToolCall:
        number = 2 * rng.randrange(5) if rng else 0
        text = f"{number} is even." if working else ""
        return ToolCall(name="pick", arguments={"number": number}, text=text)


async def played(agent: OracleAgent, *, seed: int = 1, member: int = 0) -> Episode:
    assignment = Assignment("episode", CHOICES, {"seed": seed}, seed, "group", member)
    async with connect(CHOICES).session() as session:
        return await run_episode(session, agent, assignment)


def picks(episode: Episode) -> list[str]:
    return [call.function.arguments for each in episode.messages for call in each.tool_calls or ()]


async def test_the_oracle_chooses_by_seed_and_member_and_the_same_way_again() -> None:
    first = picks(await played(OracleAgent()))
    assert first == picks(await played(OracleAgent()))
    others = [await played(OracleAgent(), member=member) for member in range(1, 6)]
    assert any(picks(other) != first for other in others)


async def test_the_oracle_asks_an_environment_in_this_process_itself() -> None:
    built_before = Choices.num_built
    assert (await played(OracleAgent())).reward == 1.0
    assert Choices.num_built == built_before + 1


async def test_without_a_generator_the_oracle_is_deterministic() -> None:
    shadow = OracleEnvironment(find_environment(CHOICES))
    await shadow.reset({"seed": 1})
    proposals = [await shadow.propose() for _ in range(5)]
    await shadow.close()
    assert proposals == [ToolCall(name="pick", arguments={"number": 0})] * 5


async def test_the_working_is_the_text_of_the_reply_and_is_recorded() -> None:
    silent, spoken = await played(OracleAgent()), await played(OracleAgent(working=True))
    replies = [message for message in spoken.messages if message.role == "assistant"]
    assert [reply.text.endswith("is even.") for reply in replies] == [True] * 3
    assert picks(spoken) == picks(silent)
    assert not any(m.text for m in silent.messages if m.role == "assistant")
    assert spoken.agent == {"provider": "oracle", "working": True}
    assert silent.agent == {"provider": "oracle"}


async def test_a_proposal_changes_nothing_until_it_is_followed() -> None:
    shadow = OracleEnvironment(find_environment("guess_number"))
    await shadow.reset({"seed": 1, "low": 1, "high": 100})
    first = await shadow.propose()
    assert first is not None and first == await shadow.propose()
    await shadow.follow(ToolCall(name="guess", arguments={"number": 100}))
    second = await shadow.propose()
    await shadow.close()
    assert first.arguments == {"number": 50}
    assert second is not None and second.arguments == {"number": 50}  # 100 has ruled out itself.


async def propose_after(*replies: Message) -> ToolCall | None:
    shadow = OracleEnvironment(find_environment("catch"))
    await shadow.reset({"seed": 0, "rows": 4, "columns": 3})
    await shadow.follow_messages([Message(role="user"), *replies])
    call = await shadow.propose()
    await shadow.close()
    return call


def moves(*directions: str) -> Sequence[Message]:
    calls = [ToolCall(name="move", arguments={"direction": each}) for each in directions]
    return [build_tool_call_message(call, position=1) for call in calls]


async def test_the_oracle_answers_where_others_have_led_it() -> None:
    left, right = await propose_after(*moves("left", "left")), await propose_after(*moves("right"))
    assert left is not None and right is not None
    assert left.arguments != right.arguments


async def test_calls_that_the_environment_has_refused_are_not_followed() -> None:
    broken = (
        Call(id="1", function=Function(name="move", arguments='{"direction": "le')),
        Call(id="2", function=Function(name="jump", arguments='{"direction": "left"}')),
        Call(id="3", function=Function(name="move", arguments='{"direction": "up"}')),
    )
    malformed = Message(role="assistant", tool_calls=broken)
    assert await propose_after(malformed) == await propose_after()


async def test_nothing_is_proposed_once_the_episode_is_over() -> None:
    assert await propose_after(*moves("stay", "stay", "stay")) is None


async def test_the_oracle_goes_on_from_calls_that_it_has_not_made() -> None:
    """A player that shows it other messages, as where random actions are made between its own."""
    context = EpisodeContext("guess_number", (), {"seed": 1, "low": 1, "high": 100}, 1)
    player = await OracleAgent().begin(context)
    messages = [Message(role="user", content="Guess.")]
    first = (await player.act(messages)).message
    messages.append(
        build_tool_call_message(ToolCall(name="guess", arguments={"number": 30}), position=1)
    )
    second = (await player.act([*messages, Message(role="tool", content="lower")])).message
    await player.close()
    guesses = [
        json.loads(message.tool_calls[0].function.arguments)["number"]
        for message in (first, second)
        if message.tool_calls
    ]
    assert guesses == [pytest.approx(50, abs=6), pytest.approx(15, abs=1)]  # Of 1 to 100, 1 to 29.


async def test_a_scripted_reply_may_say_something_with_its_call() -> None:
    call = ToolCall(name="pick", arguments={"number": 1}, text="Why not.")
    player = await ScriptedAgent(call).begin(EpisodeContext(CHOICES, ()))
    assert (await player.act([])).message.content == "Why not."
