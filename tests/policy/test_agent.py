"""Episodes of a local model: the recorded tokens are those that it sampled."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from tiny_tokenizers import of_family

from ludus import connect
from ludus.agents.agent import EpisodeContext, FinishReason, Reply, build_tool_call_message
from ludus.data.episode import Episode, StopReason, Tokens
from ludus.data.messages import Message
from ludus.data.tool_schema import ToolCall, ToolSpec
from ludus.errors import ConfigError, RequestRefused
from ludus.policy.agent import PolicyAgent
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.load import Policy
from ludus.rollout import Assignment, EpisodeLimits, run_episode
from policy.forwards import fresh_logprobs
from policy.models import tiny
from policy.trained_policies import COUNTER, GOAL, player


@pytest.fixture(scope="module", params=["qwen3", "chatml"])
def trained_policy(request: pytest.FixtureRequest) -> Policy:
    """A policy that plays Counter, with its own template or with one of Ludus."""
    return player(request.param)


@pytest.fixture(scope="module")
def random_policy() -> Policy:
    tokenizer = of_family("qwen3")
    return Policy("talker", tiny(tokenizer), tokenizer, find_chat_format(tokenizer))


async def play(
    policy: Policy,
    goal: int = GOAL,
    *,
    member: int = 0,
    limits: EpisodeLimits | None = None,
    **kwargs: Any,
) -> Episode:
    task = {"goal": goal, "seed": 3}
    assignment = Assignment("e", COUNTER, task, seed=3, group_id="g", member=member)
    async with PolicyAgent(policy, **kwargs) as agent, connect(COUNTER).session() as session:
        return await run_episode(session, agent, assignment, limits=limits)


def token_runs(tokens: Tokens) -> list[tuple[int, list[int]]]:
    """Runs of ids that were given (0) or sampled (1)."""
    pairs = zip(tokens.mask, tokens.ids, strict=True)
    return [
        (was_sampled, [token for _, token in run])
        for was_sampled, run in groupby(pairs, key=lambda pair: pair[0])
    ]


@pytest.mark.parametrize(("goal", "numbers"), [(3, [3]), (GOAL, [3, 3])])
async def test_a_trained_model_plays_its_game(
    trained_policy: Policy, goal: int, numbers: list[int]
) -> None:
    episode = await play(trained_policy, goal, temperature=0)
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.DONE)
    calls = [call for message in episode.messages for call in message.tool_calls or ()]
    assert [call.function.arguments for call in calls] == [f'{{"number": {n}}}' for n in numbers]
    assert len({call.id for call in calls}) == len(numbers)
    assert episode.agent == {"provider": "hf", "model": "player", "temperature": 0}
    assert episode.tokens is not None
    replies = [len(ids) for was_sampled, ids in token_runs(episode.tokens) if was_sampled]
    assert len(replies) == len(numbers) and episode.usage.completion_tokens == sum(replies)
    prompts = [
        sum(len(ids) for _, ids in token_runs(episode.tokens)[: 2 * at + 1])
        for at in range(len(replies))
    ]
    assert episode.usage.prompt_tokens == sum(prompts), "each prompt contains all tokens before it"


async def test_the_tokens_of_an_episode_are_its_rendered_conversation(
    trained_policy: Policy,
) -> None:
    from ludus.policy.chat.rendering import render, to_template_message

    episode = await play(trained_policy, temperature=0)
    messages = [to_template_message(message) for message in episode.messages]
    rendered = render(
        trained_policy.tokenizer, messages, episode.tools, trained_policy.chat_format.template
    )
    assert episode.tokens is not None
    length = len(episode.tokens.ids)
    assert episode.tokens.ids == rendered.ids[:length]
    assert [ids for was_sampled, ids in token_runs(episode.tokens) if was_sampled] == [
        [*rendered.ids[start:end]]
        for start, end in _spans_until_stop_token(rendered, trained_policy)
    ]
    remainder = trained_policy.tokenizer.decode(rendered.ids[length:])
    assert "Total 6." in remainder and "add" not in remainder, "only the last result is missing"


def _spans_until_stop_token(rendered: Any, policy: Policy) -> list[tuple[int, int]]:
    """The spans with loss, without what templates write behind the stop token."""
    ends = [
        at for at, token in enumerate(rendered.ids) if token in policy.chat_format.stop_token_ids
    ]
    return [(start, min(at for at in ends if at >= start) + 1) for start, _ in rendered.spans]


@pytest.mark.parametrize("temperature", [0, 1.0, 1.3])
async def test_logprobs_of_a_whole_episode_are_those_of_a_fresh_forward_pass(
    trained_policy: Policy, temperature: float
) -> None:
    tokens = (await play(trained_policy, temperature=temperature)).tokens
    assert tokens is not None
    fresh = fresh_logprobs(
        trained_policy.model, tokens.ids[:1], tokens.ids[1:], temperature=temperature or 1.0
    )
    sampled = [index for index, was_sampled in enumerate(tokens.mask) if was_sampled]
    assert [tokens.logprobs[at] for at in sampled] == pytest.approx(
        [fresh[at - 1] for at in sampled], abs=1e-3
    )
    assert all(
        tokens.logprobs[index] is None
        for index, was_sampled in enumerate(tokens.mask)
        if not was_sampled
    )


async def test_a_reply_that_was_cut_off_behind_its_call_is_ended_by_the_prompt(
    trained_policy: Policy,
) -> None:
    rendered = (await play(trained_policy, temperature=0)).tokens
    assert rendered is not None
    shortest = min(len(ids) for was_sampled, ids in token_runs(rendered) if was_sampled)
    cut = await play(trained_policy, temperature=0, limits=EpisodeLimits(max_tokens=shortest - 1))
    assert cut.tokens is not None and cut.reward == 1.0
    assert cut.tokens.ids == rendered.ids[:-1]
    stops = [
        at
        for at, token in enumerate(cut.tokens.ids)
        if token in trained_policy.chat_format.stop_token_ids
    ]
    assert not any(cut.tokens.mask[at] for at in stops), "the stop tokens were not sampled"


async def test_a_reply_without_room_for_a_call_ends_the_episode(trained_policy: Policy) -> None:
    episode = await play(trained_policy, temperature=0, limits=EpisodeLimits(max_tokens=2))
    assert (episode.stop_reason, episode.usage.completion_tokens) == (StopReason.MAX_TOKENS, 2)


async def test_a_conversation_that_exceeds_the_context_is_cut_off(
    trained_policy: Policy,
) -> None:
    messages = [
        Message(role="user", content="Begin."),
        Message(role="user", content="long " * 2000),
    ]
    async with PolicyAgent(trained_policy) as agent:
        player = await agent.begin(EpisodeContext(COUNTER, ()))
        await player.act(messages[:1], max_tokens=2)
        reply = await player.act(messages)
    assert (reply.finish_reason, reply.message.text) == (FinishReason.LENGTH, "")
    assert reply.usage.prompt_tokens > 1024 and reply.usage.completion_tokens == 0


async def test_a_first_prompt_that_exceeds_the_context_is_rejected(trained_policy: Policy) -> None:
    long = Message(role="user", content="long " * 2000)
    async with PolicyAgent(trained_policy) as agent:
        player = await agent.begin(EpisodeContext(COUNTER, ()))
        with pytest.raises(RequestRefused, match="1,024"):
            await player.act([long])


async def test_a_prompt_needs_room_for_one_token(
    random_policy: Policy,
) -> None:
    short = Message(role="user", content="Begin.")
    config = random_policy.model.config
    original = config.max_position_embeddings

    async def sample_one() -> Reply:
        async with PolicyAgent(random_policy) as agent:
            return await (await agent.begin(EpisodeContext(COUNTER, ()))).act([short], max_tokens=4)

    try:
        length = (await sample_one()).usage.prompt_tokens
        config.max_position_embeddings = length + 1
        assert (await sample_one()).usage.completion_tokens == 1
        config.max_position_embeddings = length
        with pytest.raises(RequestRefused, match=f"{length} tokens"):
            await sample_one()
    finally:
        config.max_position_embeddings = original


async def test_sampling_is_reproducible_and_group_members_differ(
    random_policy: Policy,
) -> None:
    async def replies(**kwargs: Any) -> tuple[int, ...]:
        tokens = (await play(random_policy, limits=EpisodeLimits(max_tokens=8), **kwargs)).tokens
        assert tokens is not None
        return tokens.ids[-8:]

    first = await replies()
    assert first == await replies(member=0)
    others = [
        await replies(member=1),
        await replies(extra={"seed": 1}),
        await replies(temperature=0),
    ]
    assert len({first, *others}) == 4


async def test_a_tool_result_is_rendered_with_the_name_of_its_tool() -> None:
    """Some templates write the name, which results do not contain."""
    tokenizer = of_family("gptoss")
    policy = Policy("talker", tiny(tokenizer), tokenizer, find_chat_format(tokenizer))
    tools = tuple(ToolSpec(name=name) for name in ("guess", "add"))
    messages = [
        Message(role="user", content="Begin."),
        build_tool_call_message(ToolCall(name="add"), position=1),
        Message(role="tool", content="3", tool_call_id="call_1_0"),
    ]
    async with PolicyAgent(policy) as agent:
        player = await agent.begin(EpisodeContext(COUNTER, tools))
        await player.act(messages[:1], max_tokens=2)
        reply = await player.act(messages, max_tokens=2)
    assert reply.tokens is not None
    assert "<|start|>functions.add to=assistant" in tokenizer.decode(reply.tokens.ids)


async def test_a_failing_model_breaks_the_episode(
    random_policy: Policy,
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no kernel\nfor this")

    hook = random_policy.model.register_forward_pre_hook(fail)
    try:
        episode = await play(random_policy)
    finally:
        hook.remove()
    assert episode.reward is None and episode.error is not None
    assert (episode.error.kind, episode.error.where) == ("AgentError", "model")
    assert "no kernel for this" in episode.error.message


async def test_the_generation_config_is_the_default_for_sampling(random_policy: Policy) -> None:
    config = random_policy.model.generation_config
    config.update(do_sample=True, temperature=0.6, top_k=20, top_p=0.95)
    try:
        for prompts, expected in (
            ({}, (0.6, 0.95, 20)),
            ({"extra": {"top_k": 5}}, (0.6, 0.95, 5)),
            ({"temperature": 1.0}, (1.0, 1.0, None)),
            ({"temperature": 0.0, "extra": {"top_p": 0.5}}, (0.0, 0.5, None)),
        ):
            agent = PolicyAgent(random_policy, **prompts)
            sampling = (await agent.ensure_loaded()).sampling
            assert (sampling.temperature, sampling.top_p, sampling.top_k) == expected
            await agent.close()
    finally:
        config.update(do_sample=False, temperature=None, top_k=None, top_p=None)
    assert (await PolicyAgent(random_policy).ensure_loaded()).sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"extra": {"topp": 0.9}}, ["'topp'", "'top_p'"]),
        ({"extra": {"stream": True}}, ["'stream'", "top_p, top_k, seed"]),
        ({"extra": {"temperature": 0.5}}, ["`extra`", "`temperature`"]),
        ({"extra": {"max_tokens": 64}}, ["`extra`", "`max_tokens`"]),
        ({"extra": {"chat_template_kwargs": {}}}, ["`extra`", "`chat_template_kwargs`"]),
        ({"chat_template_kwargs": {"messages": []}}, ["'messages'"]),
        ({"extra": {"top_k": 2.5}}, ["top_k", "2.5"]),
        ({"extra": {"top_p": "a"}}, ["top_p", "'a'"]),
        ({"extra": {"top_p": 2}}, ["`top_p`", "2"]),
        ({"temperature": -1.0}, ["`temperature`", "-1.0"]),
    ],
)
def test_invalid_options_are_rejected(options: Any, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        PolicyAgent("m", **options)
    assert all(part in str(caught.value) for part in parts)


async def test_a_model_goes_on_from_replies_that_it_has_not_made(trained_policy: Policy) -> None:
    """As a tutor, or where random actions come in between, it sees what was really done."""
    others = await play(trained_policy, temperature=0)
    async with connect(COUNTER).session() as session:
        context = EpisodeContext(COUNTER, session.tools, {"goal": GOAL}, seed=3)
    async with PolicyAgent(trained_policy, temperature=0) as agent:
        fresh, tutor = await agent.begin(context), await agent.begin(context)
        before_second = others.messages[: len(others.messages) - 2]
        own = await tutor.act(before_second[:2])
        renamed = before_second[2].model_copy(update={"content": "I add three."})
        messages = [*before_second[:2], renamed, *before_second[3:]]
        again, at_once = await tutor.act(messages), await fresh.act(messages)
    assert own.tokens is not None and again.tokens is not None and at_once.tokens is not None
    assert again.tokens.ids == at_once.tokens.ids
    assert again.tokens.mask == at_once.tokens.mask
    shown = trained_policy.tokenizer.decode(again.tokens.ids)
    assert shown.count("I add three.") == 1
