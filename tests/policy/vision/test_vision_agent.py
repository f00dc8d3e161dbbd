"""Rollouts of vision models, and of a text-only model in an environment with images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rollout.small_runs import read, run
from tiny_tokenizers import of_family

from ludus import connect
from ludus.agents.agent import EpisodeContext
from ludus.data.episode import Episode, StopReason
from ludus.data.messages import Message, Text, message_from_content
from ludus.errors import ProviderRefuses, StoppedEarly
from ludus.policy.agent import PolicyAgent
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.chat.rendering import render, to_template_message
from ludus.policy.load import Policy
from ludus.rollout import Assignment, EpisodeLimits, run_episode
from policy import models
from policy.vision.image_env import COLOURS, GALLERY, picture, taught, untaught


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen3_vl"])
def policy(request: pytest.FixtureRequest) -> Policy:
    """One with a template of Ludus, one with its own."""
    return taught(request.param)


async def play(policy: Policy, spec: str = GALLERY, **task: Any) -> Episode:
    async with PolicyAgent(policy, temperature=0) as agent, connect(spec).session() as session:
        return await run_episode(
            session, agent, Assignment.of(spec, **task), limits=EpisodeLimits(max_turns=3)
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
async def test_a_trained_model_names_the_colours(policy: Policy, seed: int) -> None:
    episode = await play(policy, seed=seed)
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.DONE)
    calls = [call for message in episode.messages for call in message.tool_calls or ()]
    assert [call.function.name for call in calls] == ["draw", "name"]
    assert json.loads(calls[1].function.arguments) == {"colour": COLOURS[seed]}


async def test_the_ids_of_an_episode_are_its_rendered_conversation_with_images(
    policy: Policy,
) -> None:
    vision = policy.vision
    assert vision is not None
    episode = await play(policy, seed=1)
    assert episode.tokens is not None
    ids, mask = episode.tokens.ids, episode.tokens.mask
    assert sum(token == vision.image_token_id for token in ids) == 6 + 8, (
        "the last image comes after the last reply"
    )
    assert {
        own for own, token in zip(mask, ids, strict=True) if token == vision.image_token_id
    } == {0}
    messages = [
        to_template_message(vision.message_to_text(message)) for message in episode.messages
    ]
    rendered = render(policy.tokenizer, messages, episode.tools, policy.chat_format.template)
    expected = vision.expand_placeholders(rendered.ids, vision.process_messages(episode.messages))
    assert list(ids) == expected[: len(ids)]
    assert episode.usage.completion_tokens == sum(mask)


async def test_a_vision_model_collects_concurrent_episodes(policy: Policy, tmp_path: Path) -> None:
    assert policy.vision is not None
    for part in (policy.model, policy.tokenizer, policy.vision.image_processor):
        part.save_pretrained(tmp_path / "model")
    async with PolicyAgent(
        str(tmp_path / "model"), temperature=0, device="cpu", dtype="float32"
    ) as agent:
        await run(tmp_path / "run", agent, spec=GALLERY, n=8, group_size=2)
        assert agent.engine_description.startswith("HF decoder")
    episodes = read(tmp_path / "run")
    assert [episode.reward for episode in episodes] == [1.0] * 8
    assert {episode.messages[1].text for episode in episodes} == {"Draw the curtain.\n[image]"}


async def test_a_vision_model_plays_an_environment_without_images() -> None:
    episode = await play(untaught("qwen2_vl"), "world:Counter", goal=3)
    assert episode.error is None and episode.tokens is not None and any(episode.tokens.mask)


async def test_a_text_only_model_ends_the_run_at_the_first_image(
    text_policy: Policy, tmp_path: Path
) -> None:
    async with PolicyAgent(text_policy, temperature=0) as agent:
        with pytest.raises(StoppedEarly) as caught:
            await run(tmp_path / "run", agent, spec=GALLERY, n=50)
    message = str(caught.value)
    assert GALLERY in message and "reads only text" in message and "Qwen2.5-VL" in message
    assert read(tmp_path / "run") == []


async def test_images_in_tool_results_are_rejected_for_a_text_only_model(
    text_policy: Policy,
) -> None:
    prompt = Message(role="user", content="Draw the curtain.")
    result = message_from_content(
        "tool", [Text(text="There:"), picture(16, 16, "red")], tool_call_id="a"
    )
    async with PolicyAgent(text_policy) as agent:
        player = await agent.begin(EpisodeContext(GALLERY, tools=()))
        reply = await player.act([prompt], max_tokens=3)
        with pytest.raises(ProviderRefuses, match="reads only text"):
            await player.act([prompt, reply.message, result], max_tokens=3)


@pytest.fixture
def text_policy() -> Policy:
    tokenizer = of_family("qwen3")
    return Policy("text-only", models.tiny(tokenizer), tokenizer, find_chat_format(tokenizer))


async def test_a_placeholder_in_the_text_breaks_only_that_episode() -> None:
    episode = await play(untaught("qwen2_vl"), "policy.vision.image_env:Forger")
    assert episode.error is not None and episode.error.kind == "RequestRefused"
    assert "<|vision_start|><|image_pad|><|vision_end|>" in episode.error.message
