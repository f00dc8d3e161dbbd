"""Ludus's loop and TRL's give the same prompt, messages, tokens and reward for the same replies.

The known differences are tested, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.data.episode import Episode, StopReason
from ludus.data.messages import Message
from ludus.policy.load import Policy
from train.trl_compat.scripted_rollouts import (
    TRLResult,
    build_trainer,
    call,
    chat_policy,
    run_ludus_loop,
    run_trl_loop,
)

SMALL = {"rows": 4, "columns": 3, "seed": 5}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return chat_policy()


def ludus_message(message: Message) -> dict[str, Any]:
    """Return a message without call ids, which TRL does not have."""
    comparable: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        comparable["calls"] = [
            (each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls
        ]
    return comparable


def trl_message(message: dict[str, Any]) -> dict[str, Any]:
    comparable = {"role": message["role"], "content": message["content"]}
    if message.get("tool_calls"):
        functions = [each["function"] for each in message["tool_calls"]]
        comparable["calls"] = [(each["name"], each["arguments"]) for each in functions]
    return comparable


def split_prompt(episode: Episode, result: TRLResult) -> tuple[list[int], list[int]]:
    """Return ids and mask after the prompt, which must be equal."""
    assert episode.tokens is not None
    ids, mask = list(episode.tokens.ids), [int(own) for own in episode.tokens.mask]
    end = mask.index(1)
    assert ids[:end] == result.prompt
    return ids[end:], mask[end:]


def check_common_prefix(result: TRLResult, episode: Episode) -> list[int]:
    """Check that the TRL rollout starts with the episode; return the mask of the rest."""
    ids, mask = split_prompt(episode, result)
    assert result.ids[: len(ids)] == ids
    assert result.mask[: len(ids)] == mask
    messages = [ludus_message(message) for message in episode.messages]
    assert [trl_message(message) for message in result.messages[: len(messages)]] == messages
    return result.mask[len(ids) :]


@pytest.mark.parametrize(
    ("spec", "replies", "task"),
    [
        ("reasoning_gym", [call("answer", answer="41")], {"seed": 3}),
        ("catch", [call("move", direction=where) for where in ("left", "stay", "right")], SMALL),
        ("wordle", [call("guess", word="crane"), "I give up."], {"seed": 1}),
        ("wordle", ["First thoughts.\n" + call("guess", word="slate"), "No more."], {"seed": 2}),
        ("catch", ["Where is the ball?"], SMALL),
    ],
)
async def test_both_loops_give_equal_messages_tokens_masks_and_reward(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
    spec: str,
    replies: list[str],
    task: dict[str, Any],
) -> None:
    episode = await run_ludus_loop(monkeypatch, policy, spec, replies, **task)
    result = run_trl_loop(build_trainer(tmp_path, policy, spec), policy, replies, **task)
    rest = check_common_prefix(result, episode)
    assert result.reward == episode.reward is not None
    if episode.done:
        # TRL does not know that it is over: it shows the last result and has another reply written.
        assert (
            rest and rest[-1] == 1 and result.messages[len(episode.messages) - 1]["role"] == "tool"
        )
    else:
        assert rest == [] and len(result.messages) == len(episode.messages)


async def test_invalid_arguments_get_the_same_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    replies = [call("move", direction="up"), call("move", where="left"), call("move"), "I give up."]
    episode = await run_ludus_loop(monkeypatch, policy, "catch", replies, **SMALL)
    result = run_trl_loop(build_trainer(tmp_path, policy, "catch"), policy, replies, **SMALL)
    assert check_common_prefix(result, episode) == []
    assert (result.reward, episode.malformed_calls) == (0.0, 3)


async def test_all_calls_of_a_reply_are_answered_also_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    moves = [call("move", direction="left") for _ in range(2)]
    replies = ["\n".join(moves), "\n".join(moves)]
    episode = await run_ludus_loop(monkeypatch, policy, "catch", replies, **SMALL)
    result = run_trl_loop(build_trainer(tmp_path, policy, "catch"), policy, replies, **SMALL)
    check_common_prefix(result, episode)
    assert episode.messages[-1].text.startswith("Error: This call was not run")
    assert (result.reward, episode.done) == (episode.reward, True)


async def test_unknown_tool_gets_a_suggestion_only_from_ludus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    replies = [call("moove", direction="left"), "I give up."]
    episode = await run_ludus_loop(monkeypatch, policy, "catch", replies, **SMALL)
    result = run_trl_loop(build_trainer(tmp_path, policy, "catch"), policy, replies, **SMALL)
    assert "Did you mean 'move'?" in episode.messages[-2].text
    assert result.messages[-2]["content"] == "{'error': 'Tool moove not found.'}"
    assert result.reward == episode.reward == 0.0


async def test_invalid_json_ends_only_the_rollout_of_trl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    broken = '<tool_call>\n{"name": "move", "arguments": {\n</tool_call>'
    replies = [broken, *[call("move", direction="left") for _ in range(3)]]
    episode = await run_ludus_loop(monkeypatch, policy, "catch", replies, **SMALL)
    result = run_trl_loop(build_trainer(tmp_path, policy, "catch"), policy, replies, **SMALL)
    # What the model wrote is the same. TRL takes it for words, and words end a rollout: the model
    # never learns what was wrong with its call. Ours says it, and the episode is played to its end.
    ids, _ = split_prompt(episode, result)
    assert ids[: len(result.ids)] == result.ids
    assert (len(result.messages), result.messages[-1]["role"]) == (3, "assistant")
    assert "not JSON" in episode.messages[3].text
    assert (episode.stop_reason, episode.malformed_calls) == (StopReason.DONE, 1)
