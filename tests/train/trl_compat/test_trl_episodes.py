"""Episodes built from TRL's rollouts."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image as Pictures

from ludus.data.episode import Fault, StopReason
from ludus.data.messages import ImagePart
from ludus.rollout import EpisodeLimits
from ludus.rollout.loop import RewardSum
from ludus.train.trl_compat.env_session import EpisodeState
from ludus.train.trl_compat.trl_episodes import (
    TRLEpisode,
    build_tokens,
    parse_messages,
)

LIMITS = EpisodeLimits(max_turns=2, max_episode_tokens=4)
WORDS = {"role": "assistant", "content": "Well."}
CALL = {"type": "function", "function": {"name": "go", "arguments": {"far": 1}}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}
RESULT = {"role": "tool", "name": "go", "content": "Gone."}
FAULT = Fault(kind="SessionLost", where="environment", message="It is gone.")


def build_rollout(
    completion: list[dict[str, Any]], state: EpisodeState, tokens: int = 3
) -> TRLEpisode:
    built_tokens = build_tokens([9, 9], [5] * tokens, None)
    return TRLEpisode([], completion, state, "here", (), built_tokens)


@pytest.mark.parametrize(
    ("completion", "state", "tokens", "reason"),
    [
        ([WORDS], EpisodeState(), 3, StopReason.NO_TOOL_CALL),
        ([WORDS], EpisodeState(), 4, StopReason.MAX_TOKENS),
        (
            [CALLS, RESULT, RESULT, WORDS],
            EpisodeState(score=RewardSum(done=True)),
            4,
            StopReason.DONE,
        ),
        ([CALLS, RESULT, RESULT, WORDS], EpisodeState(fault=FAULT), 3, StopReason.BROKEN),
        ([CALLS], EpisodeState(), 3, StopReason.MAX_TOKENS),
        ([CALLS, RESULT, RESULT] * 2 + [CALLS], EpisodeState(), 3, StopReason.MAX_TURNS),
    ],
)
def test_stop_reason(
    completion: list[dict[str, Any]], state: EpisodeState, tokens: int, reason: StopReason
) -> None:
    assert build_rollout(completion, state, tokens).stop_reason(LIMITS) is reason


def test_tool_results_get_the_ids_of_their_calls() -> None:
    reply, first, second = parse_messages([CALLS, RESULT, RESULT])
    assert reply.tool_calls is not None
    assert [call.id for call in reply.tool_calls] == [first.tool_call_id, second.tool_call_id]
    assert len({first.tool_call_id, second.tool_call_id}) == 2
    assert reply.tool_calls[0].function.arguments == '{"far": 1}'


def test_images_are_stored_as_data_urls() -> None:
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "image", "image": Pictures.new("RGB", (2, 2))},
    ]
    (message,) = parse_messages([{"role": "user", "content": parts}])
    assert message.text == "Look\n[image]"
    assert isinstance(message.content[1], ImagePart)
    assert message.content[1].image_url.url.startswith("data:image/png;base64,")
