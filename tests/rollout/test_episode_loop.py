"""The loop, played on small environments by agents that follow a script."""

from __future__ import annotations

import asyncio
import base64
import math
from contextlib import nullcontext
from typing import Any

import pytest
from world import Counter, LineWorld, Measured, Move, View, facts, serving

from ludus import Image, Text, ToolCall, ToolEnvironment, connect, tool
from ludus.agents.agent import Agent, FinishReason, Reply
from ludus.agents.human import HumanAgent
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import RandomAgent, ScriptedAgent
from ludus.client.session import LocalSession
from ludus.data.episode import Episode, StopReason, Usage
from ludus.data.messages import Call, Function, Message
from ludus.environment.introspection import build_env_spec
from ludus.errors import ModelBusy
from ludus.rollout import Assignment, EpisodeLimits, run_episode
from ludus.rollout.episode_loop import NOT_RUN_MESSAGE

COUNTER = "world:Counter"
TWO = "world:Two"


def add(number: Any) -> ToolCall:
    return ToolCall(name="add", arguments={"number": number})


def raw_call(name: str, arguments: str, **reply: Any) -> Reply:
    call = Call(id="c1", function=Function(name=name, arguments=arguments))
    return Reply(Message(role="assistant", tool_calls=(call,)), **reply)


async def played(
    agent: Agent, spec: str = COUNTER, *, limits: EpisodeLimits | None = None, **task: Any
) -> Episode:
    async with connect(spec).session() as session:
        return await run_episode(session, agent, Assignment.of(spec, **task), limits=limits)


def locally(cls: type) -> LocalSession:
    return LocalSession(build_env_spec(cls))


def roles(episode: Episode) -> list[str]:
    return [message.role for message in episode.messages]


async def test_an_episode_is_recorded_from_the_prompt_to_the_last_tool_result() -> None:
    episode = await played(ScriptedAgent(add(2), add(3)), goal=5, seed=7)
    assert roles(episode) == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert [m.text for m in episode.messages[1::2]] == ["Reach 5.", "Total 2.", "Total 5."]
    assert (episode.reward, episode.done, episode.stop_reason) == (1.0, True, StopReason.DONE)
    assert (episode.turns, episode.tool_calls, episode.malformed_calls) == (2, 2, 0)
    assert episode.seed == 7
    assert episode.task == {"goal": 5, "seed": 7}
    assert episode.tools[0]["function"]["name"] == "add"
    assert episode.messages[3].tool_call_id == episode.messages[2].tool_calls[0].id  # type: ignore[index]


class Long(Counter):
    """Its rules give as many turns as its goal."""

    def reset(self, *, seed: int | None = None, goal: int | None = None) -> str:
        self.max_turns = goal
        return super().reset(seed=seed, goal=goal)


@pytest.mark.parametrize(
    ("goal", "limit", "turns"), [(50, None, 25), (50, 3, 3), (22, None, 22), (5, None, 20)]
)
@pytest.mark.parametrize("where", ["in process", "server"])
async def test_the_rules_give_more_turns_than_the_default_and_the_user_has_the_last_word(
    goal: int, limit: int | None, turns: int, where: str
) -> None:
    """25 calls end the longest game; a wrong one leaves the others as they are."""
    call = add(2) if goal == 50 else ToolCall(name="ad")
    agent, limits = ScriptedAgent(*[call] * 30), EpisodeLimits(max_turns=limit)
    with serving(Long) if where == "server" else nullcontext() as served:
        session = locally(Long) if served is None else connect(served.url).session()
        async with session:
            assignment = Assignment.of(COUNTER, goal=goal)
            episode = await run_episode(session, agent, assignment, limits=limits)
    assert (episode.turns, episode.done) == (turns, turns == 25)


async def test_the_return_is_the_sum_of_rewards_and_of_their_parts() -> None:
    class Paying(ToolEnvironment):
        """Pays by the step."""

        def reset(self, *, seed: int | None = None) -> str:
            return "Go."

        @tool
        def go(self) -> str:
            """Go."""
            self.award(0.25, speed=0.2, style=0.05)
            return "on"

        @tool
        def end(self) -> str:
            """End."""
            return self.finish(0.5, "over", speed=0.5)

    go, end = ToolCall(name="go"), ToolCall(name="end")
    async with locally(Paying) as session:
        episode = await run_episode(session, ScriptedAgent(go, go, end), Assignment.of("paying"))
    assert episode.reward == 1.0
    assert episode.rewards == {"speed": 0.9, "style": 0.1}
    assert episode.turn_rewards == (0.25, 0.25, 0.5)


async def test_a_reward_of_the_reset_counts_to_the_first_turn() -> None:
    class Welcoming(Counter):
        def reset(self, *, seed: int | None = None, goal: int | None = None) -> View:  # type: ignore[override]
            return View(position=0, text=super().reset(seed=seed, goal=goal), reward=0.5)

    async with locally(Welcoming) as session:
        episode = await run_episode(
            session, ScriptedAgent(add(2), add(3)), Assignment.of("welcoming", goal=5)
        )
    assert (episode.turn_rewards, episode.reward) == ((0.5, 1.0), 1.5)


async def test_calls_of_one_reply_count_to_its_turn_and_words_alone_to_their_own() -> None:
    calls = tuple(
        Call(id=f"c{number}", function=Function(name="add", arguments=f'{{"number": {number}}}'))
        for number in (1, 2)
    )
    both = Reply(Message(role="assistant", tool_calls=calls))
    words = Reply(Message(role="assistant", content="Done?"))
    agent = ScriptedAgent(both, raw_call("add", "{"), add(1), words)
    episode = await played(agent, "world:Measured", goal=8)
    assert (episode.turns, episode.stop_reason) == (4, StopReason.NO_TOOL_CALL)
    assert episode.progress == (0.0, 0.375, 0.375, 0.5, 0.5)
    assert episode.turn_rewards == (0.0, 0.0, 0.0, 0.0)


async def test_progress_and_the_rewards_of_turns_are_the_same_from_a_server() -> None:
    def plan() -> ScriptedAgent:
        return ScriptedAgent(add(2), add(3), add(5))

    assignment = Assignment.of("measured", goal=10)
    async with locally(Measured) as session:
        here = await run_episode(session, plan(), assignment)
    with serving(Measured) as served:
        async with connect(served.url).session() as remote:
            there = await run_episode(remote, plan(), assignment)
    assert here.progress == there.progress == (0.0, 0.2, 0.5, 1.0)
    assert here.turn_rewards == there.turn_rewards == (0.0, 0.0, 1.0)


async def test_an_episode_that_broke_has_neither_progress_nor_rewards_of_turns() -> None:
    class Fragile(Measured):
        @tool
        def add(self, number: int) -> str:
            """Add.

            Args:
                number: How much.
            """
            raise ZeroDivisionError

    async with locally(Fragile) as session:
        episode = await run_episode(session, ScriptedAgent(add(2)), Assignment.of("fragile"))
    assert episode.broken and (episode.progress, episode.turn_rewards) == ((), ())


async def test_calls_in_one_turn_are_run_in_order_and_each_is_answered() -> None:
    episode = await played(ScriptedAgent([add(2), add(3), add(4)]), goal=5)
    assert [m.text for m in episode.messages if m.role == "tool"] == [
        "Total 2.",
        "Total 5.",
        NOT_RUN_MESSAGE,
    ]
    assert (episode.turns, episode.tool_calls, episode.reward) == (1, 3, 1.0)


async def test_a_call_that_is_not_json_is_answered_and_counted_and_the_episode_goes_on() -> None:
    nested = raw_call("add", "[" * 5000 + "]" * 5000)
    agent = ScriptedAgent(raw_call("add", '{"number": 5'), raw_call("add", "[5]"), nested, add(5))
    episode = await played(agent, goal=5)
    wrong, not_object, too_deep, right = (m.text for m in episode.messages if m.role == "tool")
    assert "not JSON" in wrong
    assert 'Write them like {"number": …}.' in wrong
    assert "not a JSON object" in not_object
    assert "nested too deeply" in too_deep
    assert right == "Total 5."
    assert (episode.malformed_calls, episode.reward) == (3, 1.0)
    assert episode.messages[2].tool_calls[0].function.arguments == '{"number": 5'  # type: ignore[index]


@pytest.mark.parametrize("half", ['{"number": 5', "{}"], ids=["no JSON", "no argument"])
async def test_a_call_that_the_token_limit_cut_in_two_is_not_malformed(half: str) -> None:
    cut = raw_call("add", half, finish_reason=FinishReason.LENGTH)
    twice = EpisodeLimits(max_turns=2)
    episode = await played(ScriptedAgent(cut, cut), goal=5, limits=twice)
    assert (episode.stop_reason, episode.cut_off) == (StopReason.MAX_TOKENS, True)
    assert (episode.tool_calls, episode.malformed_calls, episode.format_compliant) == (0, 0, None)
    later = await played(ScriptedAgent(add(2), cut), goal=5, limits=twice)
    assert (later.tool_calls, later.format_compliant, later.cut_off) == (1, True, True)
    wrong = await played(ScriptedAgent(raw_call("add", half), cut), goal=5, limits=twice)
    assert (wrong.malformed_calls, wrong.format_compliant, wrong.cut_off) == (1, False, True)
    again = await played(ScriptedAgent(cut, add(5)), goal=5, limits=twice)
    assert (again.stop_reason, again.reward) == (StopReason.DONE, 1.0), "it may try again"
    assert (again.tool_calls, again.malformed_calls, again.format_compliant) == (1, 0, True)


async def test_a_whole_call_in_a_reply_that_was_cut_off_after_it_is_run() -> None:
    cut = raw_call("add", '{"number": 5}', finish_reason=FinishReason.LENGTH)
    episode = await played(ScriptedAgent(cut), goal=5)
    assert (episode.stop_reason, episode.reward) == (StopReason.DONE, 1.0)
    assert (episode.tool_calls, episode.format_compliant) == (1, True)


async def test_an_unknown_tool_and_arguments_that_do_not_fit_are_malformed() -> None:
    agent = ScriptedAgent(ToolCall(name="ad"), add("many"), add("[" * 5000), add(-1), add(5))
    episode = await played(agent, goal=5)
    unknown, unfit, too_deep, forbidden, _ = (m.text for m in episode.messages if m.role == "tool")
    assert "Did you mean 'add'?" in unknown
    assert "number" in unfit and "number" in too_deep
    assert forbidden == "Error: Only numbers above zero can be added."
    assert episode.malformed_calls == 3


async def test_each_way_to_stop_has_its_name() -> None:
    cut = Reply(Message(role="assistant", content="Well, I"), finish_reason=FinishReason.LENGTH)
    refusal = Reply(Message(role="assistant", content="No."), finish_reason=FinishReason.REFUSED)
    full = Reply(Message(role="assistant"), finish_reason=FinishReason.LENGTH)
    outcomes = {
        StopReason.NO_TOOL_CALL: ScriptedAgent("I would add five."),
        StopReason.REFUSED: ScriptedAgent(refusal),
        StopReason.MAX_TOKENS: ScriptedAgent(cut),
    }
    for reason, agent in outcomes.items():
        episode = await played(agent, goal=5)
        assert (episode.stop_reason, episode.reward, episode.done) == (reason, 0.0, False)
    episode = await played(ScriptedAgent(full), goal=5)
    assert episode.stop_reason is StopReason.MAX_TOKENS
    assert roles(episode) == ["system", "user"]
    episode = await played(ScriptedAgent(*[add(1)] * 9), goal=50, limits=EpisodeLimits(max_turns=3))
    assert (episode.stop_reason, episode.turns, episode.reward) == (StopReason.MAX_TURNS, 3, 0.0)


async def test_an_episode_has_a_token_budget_of_which_each_turn_gets_what_is_left() -> None:
    budgets: list[int | None] = []

    class Counting(ScriptedAgent):
        async def begin(self, context: Any) -> Any:
            player = await super().begin(context)
            act = player.act

            async def counted(messages: Any, *, max_tokens: int | None = None) -> Reply:
                budgets.append(max_tokens)
                reply = await act(messages, max_tokens=max_tokens)
                return Reply(reply.message, usage=Usage(prompt_tokens=10, completion_tokens=40))

            player.act = counted  # type: ignore[method-assign]
            return player

    limits = EpisodeLimits(max_tokens=64, max_episode_tokens=100)
    episode = await played(Counting(*[add(1)] * 9), goal=50, limits=limits)
    assert budgets == [64, 60, 20]
    assert episode.stop_reason is StopReason.MAX_TOKENS
    assert episode.usage == Usage(prompt_tokens=30, completion_tokens=120)
    assert (episode.agent["max_tokens"], episode.agent["max_episode_tokens"]) == (64, 100)


async def test_a_fault_of_the_model_is_kept_with_its_reason_and_without_a_score() -> None:
    episode = await played(ScriptedAgent(add(2), ModelBusy("HTTP 503 eight times.")), goal=5)
    assert (episode.stop_reason, episode.reward, episode.rewards) == (StopReason.BROKEN, None, {})
    assert episode.error is not None
    assert (episode.error.kind, episode.error.where) == ("ModelBusy", "model")
    assert episode.error.message == "HTTP 503 eight times."
    assert roles(episode)[-1] == "tool"


async def test_a_crash_in_the_environment_is_nobodys_score() -> None:
    class Crashing(Counter):
        """Crashes."""

        @tool
        def add(self, number: int) -> str:
            """Add.

            Args:
                number: What.
            """
            raise RuntimeError("the database is gone")

    with serving(Crashing) as served:
        async with connect(served.url).session() as session:
            episode = await run_episode(session, ScriptedAgent(add(1)), Assignment.of("crashing"))
    assert episode.reward is None
    assert episode.error is not None
    assert (episode.error.kind, episode.error.where) == ("ExecutionFailed", "environment")
    assert "the database is gone" in episode.error.message


async def test_a_deadline_says_what_the_time_went_into() -> None:
    class Thinking(ScriptedAgent):
        async def begin(self, context: Any) -> Any:
            player = await super().begin(context)
            player.act = lambda *a, **k: asyncio.sleep(60)  # type: ignore[method-assign, assignment]
            return player

    episode = await played(Thinking(), goal=5, limits=EpisodeLimits(episode_timeout=0.5))
    assert (episode.stop_reason, episode.reward) == (StopReason.DEADLINE, None)
    assert episode.error is not None
    assert episode.error.where == "model"
    assert "(turn 1)" in episode.error.message


async def test_an_environment_that_ends_without_a_reward_does_not_score() -> None:
    class Silent(LineWorld):
        """Ends without a word."""

        def step(self, action: Move) -> View:
            return View(position=action.steps, done=True)

    walk = ToolCall(name="move", arguments={"steps": 1})
    async with locally(Silent) as session:
        episode = await run_episode(session, ScriptedAgent(walk), Assignment.of("silent"))
    assert (episode.stop_reason, episode.reward) == (StopReason.DONE, None)


async def test_pictures_reach_the_messages_as_data_urls() -> None:
    png = base64.b64encode(b"\x89PNG").decode()

    class Gallery(ToolEnvironment):
        """Shows pictures."""

        def reset(self, *, seed: int | None = None) -> list[Text | Image]:
            return [Text(text="Look:"), Image(data=png)]

        @tool
        def turn(self) -> list[Text | Image]:
            """Turn around."""
            self.finish(1.0, "")
            return [Image(data=png)]

    async with locally(Gallery) as session:
        episode = await run_episode(
            session, ScriptedAgent(ToolCall(name="turn")), Assignment.of("gallery")
        )
    shown = episode.model_dump(mode="json")["messages"]
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}
    assert shown[1]["content"] == [{"type": "text", "text": "Look:"}, picture]
    assert shown[3]["content"] == [picture]


async def test_reasoning_is_kept_apart_from_what_was_said() -> None:
    thought = Reply(
        Message(
            role="assistant",
            reasoning_content="Five is what is missing.",
            tool_calls=(Call(id="x", function=Function(name="add", arguments='{"number": 5}')),),
        )
    )
    episode = await played(ScriptedAgent(thought), goal=5)
    assert episode.messages[2].reasoning_content == "Five is what is missing."
    assert episode.messages[2].content == ""
    again = Episode.from_line(episode.to_line())
    assert again == episode


async def test_in_process_and_over_the_wire_the_same_episode_reads_the_same() -> None:
    here = await played(OracleAgent(), goal=9, seed=3)
    with serving(Counter) as served:
        async with connect(served.url).session() as session:
            there = await run_episode(
                session, OracleAgent(), Assignment.of(COUNTER, goal=9, seed=3)
            )
    assert facts(here) == facts(there)
    assert here.reward == 1.0


async def test_chance_plays_the_same_calls_in_the_same_episode_and_others_in_other_groups() -> None:
    async def calls(member: int) -> list[str]:
        async with connect(TWO).session() as session:
            assignment = Assignment(f"e{member}", TWO, {"seed": 5}, 5, "g", member)
            episode = await run_episode(
                session, RandomAgent(), assignment, limits=EpisodeLimits(max_turns=8)
            )
        return [c.function.arguments for m in episode.messages for c in m.tool_calls or ()]

    first = await calls(0)
    assert first == await calls(0)
    assert first != await calls(1)


async def test_a_person_is_asked_for_a_tool_and_its_arguments() -> None:
    typed = iter(["nothing", "double", "double 21", "leave"])
    asked: list[str] = []

    async def ask(prompt: str) -> str:
        asked.append(prompt)
        return next(typed)

    episode = await played(HumanAgent(ask), TWO, seed=1)
    assert asked == ["> "] * 4
    assert [m.text for m in episode.messages if m.role == "tool"] == ['{"doubled": 42}', "bye"]
    assert episode.reward == 1.0


async def test_a_reward_that_is_no_number_breaks_the_episode() -> None:
    class Endless(Counter):
        """Rewards without measure."""

        @tool
        def add(self, number: int) -> str:
            """Add.

            Args:
                number: What.
            """
            return self.finish(math.inf, "much")

    async with locally(Endless) as session:
        episode = await run_episode(session, ScriptedAgent(add(1)), Assignment.of("endless"))
    assert (episode.stop_reason, episode.reward) == (StopReason.BROKEN, None)
