"""A local model plays: what it sampled is what is recorded, token by token."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from students import of_family

from ludus import connect
from ludus.agents.agent import EpisodeContext, FinishReason, Reply
from ludus.data.episode import Episode, StopReason, Tokens
from ludus.data.messages import Message, build_tool_call_message
from ludus.data.tool_schema import ToolCall, ToolSpec
from ludus.errors import ConfigError, RequestRefused
from ludus.policy.agent import PolicyAgent
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.load import Policy
from ludus.rollout import Assignment, EpisodeLimits, run_episode
from policy.models import tiny
from policy.forwards import fresh_logprobs
from policy.trained_policies import COUNTER, GOAL, player


@pytest.fixture(scope="module", params=["qwen3", "chatml"])
def taught(request: pytest.FixtureRequest) -> Policy:
    """It has learned to play Counter: with its own template, and with one of ours."""
    return player(request.param)


@pytest.fixture(scope="module")
def random_talker() -> Policy:
    tokenizer = of_family("qwen3")
    return Policy("talker", tiny(tokenizer), tokenizer, find_chat_format(tokenizer))


async def played(
    policy: Policy,
    goal: int = GOAL,
    *,
    member: int = 0,
    limits: EpisodeLimits | None = None,
    **more: Any,
) -> Episode:
    task = {"goal": goal, "seed": 3}
    assignment = Assignment("e", COUNTER, task, seed=3, group_id="g", member=member)
    async with PolicyAgent(policy, **more) as agent, connect(COUNTER).session() as session:
        return await run_episode(session, agent, assignment, limits=limits)


def runs(tokens: Tokens) -> list[tuple[int, list[int]]]:
    """Who wrote, given (0) and sampled (1) in turns, and which ids."""
    pairs = zip(tokens.mask, tokens.ids, strict=True)
    return [
        (who, [token for _, token in run]) for who, run in groupby(pairs, key=lambda pair: pair[0])
    ]


@pytest.mark.parametrize(("goal", "calls"), [(3, [3]), (GOAL, [3, 3])])
async def test_a_model_that_has_learned_a_game_plays_it(
    taught: Policy, goal: int, calls: list[int]
) -> None:
    episode = await played(taught, goal, temperature=0)
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.DONE)
    made = [call for message in episode.messages for call in message.tool_calls or ()]
    assert [call.function.arguments for call in made] == [f'{{"number": {n}}}' for n in calls]
    assert len({call.id for call in made}) == len(calls)
    assert episode.agent == {"provider": "hf", "model": "player", "temperature": 0}
    assert episode.tokens is not None
    said = [len(ids) for who, ids in runs(episode.tokens) if who]
    assert len(said) == len(calls) and episode.usage.completion_tokens == sum(said)
    given = [
        sum(len(ids) for _, ids in runs(episode.tokens)[: 2 * at + 1]) for at in range(len(said))
    ]
    assert episode.usage.prompt_tokens == sum(given), "each reply has all before it for a prompt"


async def test_the_tokens_of_an_episode_are_its_conversation(taught: Policy) -> None:
    from ludus.policy.chat.incremental_prompt import to_template_message
    from ludus.policy.chat.rendering import render

    episode = await played(taught, temperature=0)
    talk = [to_template_message(message) for message in episode.messages]
    whole = render(taught.tokenizer, talk, episode.tools, taught.chat_format.template)
    assert episode.tokens is not None
    length = len(episode.tokens.ids)
    assert episode.tokens.ids == whole.ids[:length]
    assert [ids for who, ids in runs(episode.tokens) if who] == [
        [*whole.ids[start:end]] for start, end in _until_the_turn_ends(whole, taught)
    ]
    rest = taught.tokenizer.decode(whole.ids[length:])
    assert "Total 6." in rest and "add" not in rest, "only the last result is not among them"


def _until_the_turn_ends(whole: Any, policy: Policy) -> list[tuple[int, int]]:
    """What is trained on, without what templates write after the end of a turn."""
    ends = [at for at, token in enumerate(whole.ids) if token in policy.chat_format.stop_token_ids]
    return [(start, min(at for at in ends if at >= start) + 1) for start, _ in whole.spans]


@pytest.mark.parametrize("temperature", [0, 1.0, 1.3])
async def test_logprobs_of_a_whole_episode_are_those_of_a_fresh_forward_pass(
    taught: Policy, temperature: float
) -> None:
    tokens = (await played(taught, temperature=temperature)).tokens
    assert tokens is not None
    fresh = fresh_logprobs(
        taught.model, tokens.ids[:1], tokens.ids[1:], temperature=temperature or 1.0
    )
    sampled = [at for at, who in enumerate(tokens.mask) if who]
    assert [tokens.logprobs[at] for at in sampled] == pytest.approx(
        [fresh[at - 1] for at in sampled], abs=1e-3
    )
    assert all(tokens.logprobs[at] is None for at, who in enumerate(tokens.mask) if not who)


async def test_a_reply_that_is_cut_off_after_its_call_gets_its_end_from_us(taught: Policy) -> None:
    whole = (await played(taught, temperature=0)).tokens
    assert whole is not None
    shortest = min(len(ids) for who, ids in runs(whole) if who)
    cut = await played(taught, temperature=0, limits=EpisodeLimits(max_tokens=shortest - 1))
    assert cut.tokens is not None and cut.reward == 1.0
    assert cut.tokens.ids == whole.ids[:-1]
    stops = [
        at for at, token in enumerate(cut.tokens.ids) if token in taught.chat_format.stop_token_ids
    ]
    assert not any(cut.tokens.mask[at] for at in stops), "the ends of turns were not sampled"


async def test_a_reply_without_room_for_a_call_ends_the_episode(taught: Policy) -> None:
    episode = await played(taught, temperature=0, limits=EpisodeLimits(max_tokens=2))
    assert (episode.stop_reason, episode.usage.completion_tokens) == (StopReason.MAX_TOKENS, 2)


async def test_a_conversation_that_grows_longer_than_the_context_is_cut_off(
    taught: Policy,
) -> None:
    talk = [Message(role="user", content="Begin."), Message(role="user", content="long " * 2000)]
    async with PolicyAgent(taught) as agent:
        player = await agent.begin(EpisodeContext(COUNTER, ()))
        await player.act(talk[:1], max_tokens=2)
        reply = await player.act(talk)
    assert (reply.finish_reason, reply.message.text) == (FinishReason.LENGTH, "")
    assert reply.usage.prompt_tokens > 1024 and reply.usage.completion_tokens == 0


async def test_a_task_that_leaves_no_room_for_a_reply_is_nobodys_score(taught: Policy) -> None:
    long = Message(role="user", content="long " * 2000)
    async with PolicyAgent(taught) as agent:
        player = await agent.begin(EpisodeContext(COUNTER, ()))
        with pytest.raises(
            RequestRefused, match=r"^The prompt has \d,\d+ tokens, and the model re"
        ):
            await player.act([long])


async def test_a_prompt_with_room_for_one_token_is_answered_and_with_none_refused(
    random_talker: Policy,
) -> None:
    short = Message(role="user", content="Begin.")
    config = random_talker.model.config
    usual = config.max_position_embeddings

    async def asked() -> Reply:
        async with PolicyAgent(random_talker) as agent:
            return await (await agent.begin(EpisodeContext(COUNTER, ()))).act([short], max_tokens=4)

    try:
        length = (await asked()).usage.prompt_tokens
        config.max_position_embeddings = length + 1
        assert (await asked()).usage.completion_tokens == 1
        config.max_position_embeddings = length
        with pytest.raises(RequestRefused, match=f"has {length} .* reads {length} at most"):
            await asked()
    finally:
        config.max_position_embeddings = usual


async def test_the_same_plan_samples_the_same_and_members_of_a_group_differ(
    random_talker: Policy,
) -> None:
    async def said(**more: Any) -> tuple[int, ...]:
        tokens = (await played(random_talker, limits=EpisodeLimits(max_tokens=8), **more)).tokens
        assert tokens is not None
        return tokens.ids[-8:]

    first = await said()
    assert first == await said(member=0)
    others = [await said(member=1), await said(extra={"seed": 1}), await said(temperature=0)]
    assert len({first, *others}) == 4


async def test_a_result_is_heard_from_the_tool_that_was_called() -> None:
    """Some templates name it, though results do not."""
    tokenizer = of_family("gptoss")
    policy = Policy("talker", tiny(tokenizer), tokenizer, find_chat_format(tokenizer))
    tools = tuple(ToolSpec(name=name) for name in ("guess", "add"))
    talk = [
        Message(role="user", content="Begin."),
        build_tool_call_message(ToolCall(name="add"), position=1),
        Message(role="tool", content="3", tool_call_id="call_1_0"),
    ]
    async with PolicyAgent(policy) as agent:
        player = await agent.begin(EpisodeContext(COUNTER, tools))
        await player.act(talk[:1], max_tokens=2)
        reply = await player.act(talk, max_tokens=2)
    assert reply.tokens is not None
    assert "<|start|>functions.add to=assistant" in tokenizer.decode(reply.tokens.ids)


async def test_a_model_that_fails_breaks_the_episode_and_is_no_score(
    random_talker: Policy,
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no kernel\nfor this")

    hook = random_talker.model.register_forward_pre_hook(fail)
    try:
        episode = await played(random_talker)
    finally:
        hook.remove()
    assert episode.reward is None and episode.error is not None
    assert (episode.error.kind, episode.error.where) == ("AgentError", "model")
    assert episode.error.message == "The model failed: RuntimeError: no kernel for this"


async def test_the_makers_settings_hold_where_none_are_given(random_talker: Policy) -> None:
    config = random_talker.model.generation_config
    config.update(do_sample=True, temperature=0.6, top_k=20, top_p=0.95)
    try:
        for given, expected in (
            ({}, (0.6, 0.95, 20)),
            ({"extra": {"top_k": 5}}, (0.6, 0.95, 5)),
            ({"temperature": 1.0}, (1.0, 1.0, None)),
            ({"temperature": 0.0, "extra": {"top_p": 0.5}}, (0.0, 0.5, None)),
        ):
            agent = PolicyAgent(random_talker, **given)
            sampling = (await agent.ensure_loaded()).sampling
            assert (sampling.temperature, sampling.top_p, sampling.top_k) == expected
            await agent.close()
    finally:
        config.update(do_sample=False, temperature=None, top_k=None, top_p=None)
    assert (await PolicyAgent(random_talker).ensure_loaded()).sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"extra": {"topp": 0.9}}, "no setting 'topp'. Did you mean 'top_p'?"),
        ({"extra": {"stream": True}}, "no setting 'stream'. There are: top_p, top_k, seed."),
        ({"extra": {"temperature": 0.5}}, "no extra setting. Set it with --temperature."),
        ({"extra": {"max_tokens": 64}}, "no extra setting. Set it with --max-tokens."),
        ({"extra": {"chat_template_kwargs": {}}}, "Set it with --chat-template-kwargs."),
        ({"chat_template_kwargs": {"messages": []}}, "'messages' is set by Ludus"),
        ({"extra": {"top_k": 2.5}}, "top_k is set to 2.5, which is no whole number."),
        ({"extra": {"top_p": "a"}}, "top_p is set to 'a', which is no number."),
        ({"extra": {"top_p": 2}}, "A top_p of 2 cannot be"),
        ({"temperature": -1.0}, "A temperature of -1.0 cannot be"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(settings: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PolicyAgent("m", **settings)
    assert words in str(refused.value)
