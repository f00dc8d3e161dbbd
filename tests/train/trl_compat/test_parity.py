"""Ludus's loop and TRL's, given the same replies: the same prompt, messages, tokens and reward.

Where they part, TRL goes on where ours ends or ends where ours goes on; the tests say so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.data.episode import Episode, StopReason
from ludus.data.messages import Message
from ludus.policy.load import Policy
from train.trl_compat.scripts import Rolled, call, speaker, through_ludus, through_trl, trainer_on

SMALL = {"rows": 4, "columns": 3, "seed": 5}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return speaker()


def ours(message: Message) -> dict[str, Any]:
    """A message without the names of calls, which TRL does not give them."""
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        made["calls"] = [
            (each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls
        ]
    return made


def theirs(message: dict[str, Any]) -> dict[str, Any]:
    made = {"role": message["role"], "content": message["content"]}
    if message.get("tool_calls"):
        functions = [each["function"] for each in message["tool_calls"]]
        made["calls"] = [(each["name"], each["arguments"]) for each in functions]
    return made


def split(episode: Episode, rolled: Rolled) -> tuple[list[int], list[int]]:
    """Ids and mask after the prompt, which both must begin with."""
    assert episode.tokens is not None
    ids, mask = list(episode.tokens.ids), [int(own) for own in episode.tokens.mask]
    end = mask.index(1)
    assert ids[:end] == rolled.prompt
    return ids[end:], mask[end:]


def begins_with(rolled: Rolled, episode: Episode) -> list[int]:
    """TRL's rollout is ours and then more; what it has besides."""
    ids, mask = split(episode, rolled)
    assert rolled.ids[: len(ids)] == ids
    assert rolled.mask[: len(ids)] == mask
    messages = [ours(message) for message in episode.messages]
    assert [theirs(message) for message in rolled.messages[: len(messages)]] == messages
    return rolled.mask[len(ids) :]


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
async def test_the_same_replies_give_the_same_messages_tokens_masks_and_reward(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
    spec: str,
    replies: list[str],
    task: dict[str, Any],
) -> None:
    episode = await through_ludus(monkeypatch, policy, spec, replies, **task)
    rolled = through_trl(trainer_on(tmp_path, policy, spec), policy, replies, **task)
    rest = begins_with(rolled, episode)
    assert rolled.reward == episode.reward is not None
    if episode.done:
        # TRL does not know that it is over: it shows the last result and has another reply written.
        assert (
            rest and rest[-1] == 1 and rolled.messages[len(episode.messages) - 1]["role"] == "tool"
        )
    else:
        assert rest == [] and len(rolled.messages) == len(episode.messages)


async def test_arguments_that_do_not_fit_are_answered_with_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    replies = [call("move", direction="up"), call("move", where="left"), call("move"), "I give up."]
    episode = await through_ludus(monkeypatch, policy, "catch", replies, **SMALL)
    rolled = through_trl(trainer_on(tmp_path, policy, "catch"), policy, replies, **SMALL)
    assert begins_with(rolled, episode) == []
    assert (rolled.reward, episode.malformed_calls) == (0.0, 3)


async def test_two_calls_in_one_reply_are_both_answered_also_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    moves = [call("move", direction="left") for _ in range(2)]
    replies = ["\n".join(moves), "\n".join(moves)]
    episode = await through_ludus(monkeypatch, policy, "catch", replies, **SMALL)
    rolled = through_trl(trainer_on(tmp_path, policy, "catch"), policy, replies, **SMALL)
    begins_with(rolled, episode)
    assert episode.messages[-1].text.startswith("Error: This call was not run")
    assert (rolled.reward, episode.done) == (episode.reward, True)


async def test_an_unknown_tool_is_told_what_there_is_by_us_and_only_that_it_is_not_by_trl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    replies = [call("moove", direction="left"), "I give up."]
    episode = await through_ludus(monkeypatch, policy, "catch", replies, **SMALL)
    rolled = through_trl(trainer_on(tmp_path, policy, "catch"), policy, replies, **SMALL)
    assert "Did you mean 'move'?" in episode.messages[-2].text
    assert rolled.messages[-2]["content"] == "{'error': 'Tool moove not found.'}"
    assert rolled.reward == episode.reward == 0.0


async def test_a_call_that_is_no_json_ends_trls_rollout_and_is_answered_in_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    broken = '<tool_call>\n{"name": "move", "arguments": {\n</tool_call>'
    replies = [broken, *[call("move", direction="left") for _ in range(3)]]
    episode = await through_ludus(monkeypatch, policy, "catch", replies, **SMALL)
    rolled = through_trl(trainer_on(tmp_path, policy, "catch"), policy, replies, **SMALL)
    # What the model wrote is the same. TRL takes it for words, and words end a rollout: the model
    # never learns what was wrong with its call. Ours says it, and the episode is played to its end.
    ids, _ = split(episode, rolled)
    assert ids[: len(rolled.ids)] == rolled.ids
    assert (len(rolled.messages), rolled.messages[-1]["role"]) == (3, "assistant")
    assert "not JSON" in episode.messages[3].text
    assert (episode.stop_reason, episode.malformed_calls) == (StopReason.DONE, 1)
