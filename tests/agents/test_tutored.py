"""A tutor says in every state of a student's episode what it would have replied."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ludus import connect
from ludus.agents.agent import Agent, EpisodeContext, FinishReason, Player, Reply
from ludus.agents.combined_agent import ExploringAgent, TutoredAgent
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import ScriptedAgent
from ludus.data.episode import Episode, Usage
from ludus.data.messages import Message
from ludus.data.tool_schema import ToolCall
from ludus.errors import AgentError
from ludus.rollout import Assignment, EpisodeLimits, run_episode


def guess(number: int) -> ToolCall:
    return ToolCall(name="guess", arguments={"number": number})


async def played(agent: Agent, *, limits: EpisodeLimits | None = None, **task: Any) -> Episode:
    assignment = Assignment.of("guess_number", **{"seed": 1, "max_turns": 5, **task})
    async with connect("guess_number").session() as session:
        return await run_episode(session, agent, assignment, limits=limits)


def advice(episode: Episode) -> list[str | None]:
    return [
        reply.tool_calls[0].function.arguments if reply and reply.tool_calls else None
        for reply in episode.tutor_replies
    ]


async def test_the_oracle_labels_the_states_that_the_student_reaches() -> None:
    """The secret is 18 of 1 to 100; the student's guesses leave 1-100, 11-100, 11-100, 11-89."""
    student = ScriptedAgent(guess(10), guess(10), guess(90), guess(18))
    episode = await played(TutoredAgent(student, OracleAgent()))
    assert advice(episode) == [f'{{"number": {n}}}' for n in (50, 55, 55, 50)]
    assert episode.reward == 1.0 and episode.turns == 4
    assert episode.agent == {"provider": "scripted", "tutor": {"provider": "oracle"}}
    assert Episode.from_line(episode.to_line()) == episode


async def test_a_student_that_calls_nothing_is_told_what_to_call() -> None:
    episode = await played(TutoredAgent(ScriptedAgent("I give up."), OracleAgent()))
    assert advice(episode) == ['{"number": 50}']


async def test_random_turns_are_labelled_too() -> None:
    student = ExploringAgent(ScriptedAgent(*[guess(90)] * 5), 1.0)
    episode = await played(TutoredAgent(student, OracleAgent()))
    assert len(advice(episode)) == episode.turns == len(episode.explored_turns)
    assert None not in advice(episode)


class Talker(Agent):
    """Replies with the same text, and counts the messages that it saw."""

    provider = "talker"

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.seen: list[int] = []

    async def begin(self, context: EpisodeContext) -> Player:
        return TalkingPlayer(self)


class TalkingPlayer(Player):
    def __init__(self, agent: Talker) -> None:
        self._agent = agent

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        self._agent.seen.append(len(messages))
        return self._agent.reply


def text_reply(text: str, **fields: Any) -> Reply:
    usage = Usage(prompt_tokens=1, completion_tokens=100, cost=0.5)
    return Reply(Message(role="assistant", content=text), usage=usage, **fields)


async def test_any_agent_can_be_the_tutor_and_sees_the_students_messages() -> None:
    tutor = Talker(text_reply("Halve the range."))
    student = ScriptedAgent(guess(10), guess(18))
    limits = EpisodeLimits(max_episode_tokens=100)
    episode = await played(TutoredAgent(student, tutor), limits=limits)
    assert [reply and reply.text for reply in episode.tutor_replies] == ["Halve the range."] * 2
    assert tutor.seen == [2, 4]
    assert episode.turns == 2, "the tutor's tokens do not count against the student's limit"
    assert (episode.usage.completion_tokens, episode.usage.cost) == (200, 1.0)


@pytest.mark.parametrize(
    "reply", [text_reply(""), text_reply("Hal", finish_reason=FinishReason.LENGTH)]
)
async def test_an_empty_or_truncated_reply_of_the_tutor_is_none(reply: Reply) -> None:
    episode = await played(TutoredAgent(ScriptedAgent(guess(18)), Talker(reply)))
    assert episode.tutor_replies == (None,)


async def test_student_and_tutor_reply_at_the_same_time() -> None:
    """Each waits until the other has been asked, so one after the other would never end."""
    asked = asyncio.Barrier(2)

    class Waiting(TalkingPlayer):
        async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
            await asked.wait()
            return await super().act(messages)

    class Both(Talker):
        async def begin(self, context: EpisodeContext) -> Player:
            return Waiting(self)

    episode = await played(TutoredAgent(Both(text_reply("a")), Both(text_reply("b"))))
    assert [reply and reply.text for reply in episode.tutor_replies] == ["b"]


@pytest.mark.parametrize("breaks", ["student", "tutor"])
async def test_the_failure_of_either_breaks_the_episode(breaks: str) -> None:
    failing, other = ScriptedAgent(AgentError("The model failed.")), ScriptedAgent(guess(10))
    pair = (failing, other) if breaks == "student" else (other, failing)
    episode = await played(TutoredAgent(*pair))
    assert episode.error is not None and episode.error.message == "The model failed."


async def test_what_both_need_is_combined() -> None:
    class Priced(Talker):
        concurrency_limit = 3
        has_price = False
        sampled_tokens = 7
        faults = {"RateLimited": 2}  # noqa: RUF012

    agent = TutoredAgent(Priced(text_reply("a")), OracleAgent())
    assert agent.concurrency_limit == 3 and not agent.has_price and agent.sampled_tokens == 7
    assert agent.faults == {"RateLimited": 2} and agent.local_model is None
