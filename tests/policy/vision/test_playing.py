"""A model that sees plays an environment that shows pictures; one that cannot is told so once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rollout.small_runs import read, run
from students import of_family

from ludus import connect
from ludus.agents.agent import EpisodeContext
from ludus.data.content import Text
from ludus.data.episode import Episode, StopReason
from ludus.data.messages import Message, message_from_content
from ludus.errors import ProviderRefuses, StoppedEarly
from ludus.policy.agent import PolicyAgent
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.chat.incremental_prompt import to_template_message
from ludus.policy.chat.rendering import render
from ludus.policy.load import Policy
from ludus.rollout import Assignment, EpisodeLimits, run_episode
from policy import models
from policy.vision.gallery import COLOURS, GALLERY, picture, taught, untaught


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen3_vl"])
def seer(request: pytest.FixtureRequest) -> Policy:
    """Spoken to under one of our templates, and under its own."""
    return taught(request.param)


async def played(policy: Policy, spec: str = GALLERY, **task: Any) -> Episode:
    async with PolicyAgent(policy, temperature=0) as agent, connect(spec).session() as session:
        return await run_episode(
            session, agent, Assignment.of(spec, **task), limits=EpisodeLimits(max_turns=3)
        )


@pytest.mark.parametrize("seed", [0, 1])
async def test_a_model_says_what_it_sees(seer: Policy, seed: int) -> None:
    episode = await played(seer, seed=seed)
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.DONE)
    calls = [call for message in episode.messages for call in message.tool_calls or ()]
    assert [call.function.name for call in calls] == ["draw", "name"]
    assert json.loads(calls[1].function.arguments) == {"colour": COLOURS[seed]}


async def test_the_ids_of_an_episode_are_its_conversation_with_its_pictures(seer: Policy) -> None:
    eyes = seer.vision
    assert eyes is not None
    episode = await played(seer, seed=1)
    assert episode.tokens is not None
    ids, mask = episode.tokens.ids, episode.tokens.mask
    assert sum(token == eyes.image_token_id for token in ids) == 6 + 8, (
        "the last picture came too late"
    )
    assert {own for own, token in zip(mask, ids, strict=True) if token == eyes.image_token_id} == {
        0
    }
    talk = [to_template_message(eyes.message_to_text(message)) for message in episode.messages]
    whole = render(seer.tokenizer, talk, episode.tools, seer.chat_format.template)
    made = eyes.expand_placeholders(whole.ids, eyes.process_messages(episode.messages))
    assert list(ids) == made[: len(ids)]
    assert episode.usage.completion_tokens == sum(mask)


async def test_a_model_in_a_folder_collects_many_episodes_at_once(
    seer: Policy, tmp_path: Path
) -> None:
    assert seer.vision is not None
    for part in (seer.model, seer.tokenizer, seer.vision.image_processor):
        part.save_pretrained(tmp_path / "model")
    async with PolicyAgent(
        str(tmp_path / "model"), temperature=0, device="cpu", dtype="float32"
    ) as agent:
        await run(tmp_path / "run", agent, spec=GALLERY, n=8, group_size=2)
        assert agent.engine_description == "plain generate: the model sees pictures"
    episodes = read(tmp_path / "run")
    assert [episode.reward for episode in episodes] == [1.0] * 8
    assert {episode.messages[1].text for episode in episodes} == {"Draw the curtain.\n[image]"}


async def test_a_model_that_sees_plays_where_there_is_nothing_to_be_seen() -> None:
    episode = await played(untaught("qwen2_vl"), "world:Counter", goal=3)
    assert episode.error is None and episode.tokens is not None and any(episode.tokens.mask)


async def test_a_model_that_reads_only_text_ends_the_run_at_the_first_picture(
    reader: Policy, tmp_path: Path
) -> None:
    async with PolicyAgent(reader, temperature=0) as agent:
        with pytest.raises(StoppedEarly) as raised:
            await run(tmp_path / "run", agent, spec=GALLERY, n=50)
    assert (
        f"{GALLERY} shows pictures, and reader reads only text. Play it with a model that sees "
        "(Qwen2-VL, Qwen2.5-VL, Qwen3-VL, or one of --provider openai), or have the environment "
        "write."
    ) in str(raised.value)
    assert read(tmp_path / "run") == []


async def test_a_picture_that_only_a_tool_shows_is_refused_as_well(reader: Policy) -> None:
    asked = Message(role="user", content="Draw the curtain.")
    drawn = message_from_content(
        "tool", [Text(text="There:"), picture(16, 16, "red")], tool_call_id="a"
    )
    async with PolicyAgent(reader) as agent:
        player = await agent.begin(EpisodeContext(GALLERY, tools=()))
        reply = await player.act([asked], max_tokens=3)
        with pytest.raises(ProviderRefuses, match="shows pictures, and reader reads only text"):
            await player.act([asked, reply.message, drawn], max_tokens=3)


@pytest.fixture
def reader() -> Policy:
    tokenizer = of_family("qwen3")
    return Policy("reader", models.tiny(tokenizer), tokenizer, find_chat_format(tokenizer))


async def test_words_that_look_like_a_picture_break_one_episode_and_say_so() -> None:
    episode = await played(untaught("qwen2_vl"), "policy.eyes.gallery:Forger")
    assert episode.error is not None and episode.error.kind == "RequestRefused"
    assert "writes <|vision_start|><|image_pad|><|vision_end|> in its words" in (
        episode.error.message
    )
