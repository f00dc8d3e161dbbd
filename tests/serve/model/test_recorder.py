"""Conversations with a model server that become episodes of a run."""

from __future__ import annotations

import asyncio
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch
from openai import BadRequestError, OpenAI
from policy.trained_policies import COUNTER, GOAL, player
from world import wait_until

from ludus import connect
from ludus.agents.openai import OpenAIAgent
from ludus.data.episode import Episode, StopReason
from ludus.errors import RunError
from ludus.rollout import Assignment, run_episode
from serve.model.model_serving import (
    QUESTION,
    ServedModel,
    counter_question,
    random_policy,
    serving_model,
)

SESSION = "Ludus-Session"
TEMPERATURE = 0.5
"""Of a model that is sure of what it writes."""


def recorded(run: Path) -> list[Episode]:
    return [Episode.from_line(line) for line in (run / "episodes.jsonl").read_bytes().splitlines()]


def say(client: OpenAI, messages: list[Any], *, session: str | None = None, **options: Any) -> Any:
    """Get a reply, and add it to the messages."""
    headers = {SESSION: session} if session else {}
    settings = {"model": "nonsense", "max_tokens": 6, "seed": 1, **options}
    response = client.chat.completions.with_raw_response.create(
        messages=messages, extra_headers=headers, **settings
    )
    messages.append(response.parse().choices[0].message.model_dump())
    return response.headers[SESSION]


def check_tokens(episode: Episode, policy: Any, *, temperature: float = 1.0) -> None:
    """The recorded log-probabilities are those of the model for the recorded ids."""
    tokens = episode.tokens
    assert tokens is not None
    with torch.inference_mode():
        logits = policy.model(torch.tensor([tokens.ids])).logits[0, :-1].float() / temperature
    expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens.ids[1:])[:, None])[:, 0]
    for value, logprob, sampled in zip(
        expected.tolist(), tokens.logprobs[1:], tokens.mask[1:], strict=True
    ):
        assert (logprob is not None) == bool(sampled)
        if logprob is not None:
            assert logprob == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize("refused", ["too long", "edited", "other tools"])
def test_a_refused_call_leaves_the_tokens_as_they_were(tmp_path: Path, refused: str) -> None:
    with serving_model(record=tmp_path / "run") as served:
        client, messages = served.client(), list[Any](QUESTION)
        say(client, messages, session="s1")
        more: list[Any] = [*messages, {"role": "user", "content": "x " * 3000}]
        options: dict[str, Any] = {}
        if refused == "edited":
            more = [{"role": "user", "content": "Another start."}, *more]
        if refused == "other tools":
            options["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        with pytest.raises(BadRequestError):
            say(client, more, session="s1", **options)
        served.post("/sessions/s1/reward", {"reward": 1})
        (episode,) = recorded(tmp_path / "run")
    assert len(episode.messages) == 2 and episode.tokens is not None
    assert episode.tokens.mask.count(1) == episode.usage.completion_tokens == 6
    assert len(episode.tokens.ids) == episode.usage.prompt_tokens + 6
    assert not episode.tools


def test_a_session_with_a_reward_is_an_episode(tmp_path: Path) -> None:
    with serving_model(record=tmp_path / "run") as served:
        client, messages = served.client(), list[Any](QUESTION)
        assert say(client, messages, session="s1") == "s1"
        messages.append({"role": "user", "content": "And then?"})
        say(client, messages, session="s1", seed=2, temperature=0.8)
        response = served.post("/sessions/s1/reward", {"reward": 0.5, "rewards": {"right": 0.5}})
        assert response.status_code == 200
        (episode,) = recorded(tmp_path / "run")
        assert episode.episode_id == response.json()["episode_id"]
        again = served.post("/sessions/s1/reward", {"reward": 1})
        assert again.status_code == 404 and again.json()["error"]["code"] == "session_not_found"
        assert served.post("/sessions/s2/reward", {"reward": "good"}).status_code == 400
    assert (episode.reward, episode.rewards, episode.turns) == (0.5, {"right": 0.5}, 2)
    assert [message.role for message in episode.messages] == ["user", "assistant"] * 2
    assert episode.stop_reason is StopReason.MAX_TOKENS
    assert episode.agent["session"] == "s1" and episode.agent["temperature"] == 0.8
    assert episode.tokens is not None and episode.tokens.mask.count(1) == 12
    assert episode.usage.completion_tokens == 12


def test_recorded_log_probabilities_are_those_of_the_model(tmp_path: Path) -> None:
    with serving_model(record=tmp_path / "run") as served:
        client, messages = served.client(), list[Any](QUESTION)
        session = say(client, messages)
        messages.append({"role": "user", "content": "And then?"})
        assert say(client, messages, seed=2) == session
    (episode,) = recorded(tmp_path / "run")
    check_tokens(episode, random_policy())


def test_calls_without_a_header_are_grouped_by_what_was_said(tmp_path: Path) -> None:
    with serving_model(player(), record=tmp_path / "run") as served:
        episode = asyncio.run(_play(served))
    (copy,) = recorded(tmp_path / "run")
    assert episode.turns == copy.turns == 2
    assert copy.messages == episode.messages[: len(copy.messages)]
    assert copy.stop_reason is StopReason.MAX_TURNS and copy.reward is None
    assert copy.tool_calls == 2 and copy.malformed_calls == 0
    assert copy.tools == episode.tools
    check_tokens(copy, player(), temperature=TEMPERATURE)


async def _play(served: ServedModel) -> Episode:
    agent = OpenAIAgent("player", endpoint=f"{served.url}/v1", temperature=TEMPERATURE)
    async with agent, connect(COUNTER).session() as session:
        return await run_episode(session, agent, Assignment.of(COUNTER, goal=GOAL))


def test_conversations_that_begin_alike_are_not_mixed(tmp_path: Path) -> None:
    with serving_model(record=tmp_path / "run") as served, ThreadPoolExecutor(4) as pool:

        def talk(number: int) -> None:
            messages = list[Any](QUESTION)
            first = say(served.client(), messages)
            messages.append({"role": "user", "content": f"This is number {number}."})
            assert say(served.client(), messages) is not None and first

        list(pool.map(talk, range(4)))
    episodes = recorded(tmp_path / "run")
    assert [episode.turns for episode in episodes] == [2] * 4
    assert {episode.messages[2].text for episode in episodes} == {
        f"This is number {number}." for number in range(4)
    }
    assert len({episode.group_id for episode in episodes}) == 1


def test_an_edited_history_starts_the_tokens_over(tmp_path: Path) -> None:
    with serving_model(record=tmp_path / "run") as served:
        client, messages = served.client(), list[Any](QUESTION)
        say(client, messages, session="s")
        messages[-1] = {"role": "assistant", "content": "The answer is 42."}
        messages.append({"role": "user", "content": "And then?"})
        say(client, messages, session="s")
    (episode,) = recorded(tmp_path / "run")
    assert episode.tokens is not None and episode.tokens.mask.count(1) == 6
    assert episode.messages[1].text == "The answer is 42."


def test_a_call_that_comes_back_nested_too_deeply_is_another_call(tmp_path: Path) -> None:
    question = counter_question()
    with serving_model(player(), record=tmp_path / "run") as served:
        client, messages = served.client(), list[Any](question["messages"])
        options = {"tools": question["tools"], "max_tokens": 64, "model": "player"}
        say(client, messages, session="s", **options)
        (call,) = messages[-1]["tool_calls"]
        call["function"]["arguments"] = "[" * 1100 + "]" * 1100
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "Total 2."})
        with pytest.raises(BadRequestError, match="context length"):
            say(client, messages, session="s", **options)


def test_a_session_without_calls_ends_without_a_reward(tmp_path: Path) -> None:
    with serving_model(record=tmp_path / "run", session_timeout=0.05) as served:
        say(served.client(), list[Any](QUESTION), session="s")
        wait_until(lambda: (tmp_path / "run" / "episodes.jsonl").read_bytes())
        assert served.post("/sessions/s/reward", {"reward": 1}).status_code == 404
    (episode,) = recorded(tmp_path / "run")
    assert episode.reward is None


@pytest.mark.parametrize("name", ["a/b", "a/../reward", "x" * 256])
def test_a_session_of_any_name_gets_its_reward(tmp_path: Path, name: str) -> None:
    with serving_model(record=tmp_path / "run") as served:
        say(served.client(), list[Any](QUESTION), session=name)
        path = quote(name, safe="/").replace("..", "%2E%2E")
        assert served.post(f"/sessions/{quote(name, safe='')}/reward", {}).status_code == 200
        assert served.post(f"/sessions/{path}/reward", {}).status_code == 404
    (episode,) = recorded(tmp_path / "run")
    assert episode.agent["session"] == name


@pytest.mark.parametrize("name", ["", "a b", ".", "..", "x" * 257, "\u017c\u00f3\u0142w"])
def test_a_name_that_no_reward_could_reach_is_refused(tmp_path: Path, name: str) -> None:
    with serving_model(record=tmp_path / "run") as served:
        headers = [(SESSION.encode(), name.encode())]
        body = {"messages": QUESTION, "max_tokens": 2}
        refused = served.post("/v1/chat/completions", body, headers=headers)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == SESSION
    assert not recorded(tmp_path / "run")


def test_sessions_of_a_server_that_was_killed_are_written_by_the_next_one(tmp_path: Path) -> None:
    run, killed = tmp_path / "run", tmp_path / "killed"
    with serving_model(record=run) as served:
        for number in range(2):
            messages = list[Any](QUESTION)
            say(served.client(), messages, session=f"s/{number}")
        messages.append({"role": "user", "content": "And then?"})
        say(served.client(), messages, session="s/1")
        say(served.client(), list[Any](QUESTION), session="rewarded")
        served.post("/sessions/rewarded/reward", {"reward": 1})
        shutil.copytree(run, killed)  # What a killed process leaves.
    assert [episode.reward for episode in recorded(killed)] == [1]
    for _ in range(2):
        with serving_model(record=killed):
            pass
    _, *episodes = recorded(killed)
    assert [episode.turns for episode in episodes] == [1, 2]
    assert [episode.agent["session"] for episode in episodes] == ["s/0", "s/1"]
    assert len({episode.episode_id for episode in recorded(killed)}) == 3
    for folder in (run, killed):
        assert not (folder / "open_sessions").exists()
    check_tokens(episodes[1], random_policy())


def test_each_choice_is_an_episode_and_a_session_has_one(tmp_path: Path) -> None:
    with serving_model(record=tmp_path / "run") as served:
        body = {"messages": QUESTION, "max_tokens": 4, "n": 3}
        response = served.post("/v1/chat/completions", body)
        assert len(set(response.headers[SESSION].split(", "))) == 3
        refused = served.post("/v1/chat/completions", body, headers={SESSION: "s"})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "n"
        streamed = served.post("/v1/chat/completions", {**body, "n": 1, "stream": True})
        assert streamed.headers[SESSION]
    assert len(recorded(tmp_path / "run")) == 4


def test_a_run_goes_on_after_a_restart_and_belongs_to_one_model(tmp_path: Path) -> None:
    for _ in range(2):
        with serving_model(record=tmp_path / "run") as served:
            say(served.client(), list[Any](QUESTION), session="s")
    assert len({episode.episode_id for episode in recorded(tmp_path / "run")}) == 2
    with (
        pytest.raises(RunError, match="`record`"),
        serving_model(player(), record=tmp_path / "run"),
    ):
        pass


def test_a_complete_reply_with_a_reward_is_done(tmp_path: Path) -> None:
    with serving_model(player(), record=tmp_path / "run") as served:
        options = {"model": "player", "temperature": 0, "max_tokens": 60}
        question = counter_question()
        messages = list[Any](question["messages"])
        say(served.client(), messages, session="s", tools=question["tools"], **options)
        served.post("/sessions/s/reward", {"reward": 1.0})
    (episode,) = recorded(tmp_path / "run")
    assert episode.done and episode.reward == 1.0 and episode.stop_reason is StopReason.DONE
    assert episode.tool_calls == 1 and episode.turns == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_of_the_responses_api_is_recorded(tmp_path: Path, stream: bool) -> None:
    question = counter_question()
    items: list[Any] = list(question["messages"])
    tools = [{"type": "function", **tool["function"]} for tool in question["tools"]]
    with serving_model(player(), record=tmp_path / "run") as served:
        for turn in range(2):
            body = {"input": items, "tools": tools, "temperature": TEMPERATURE, "seed": turn}
            response = served.post("/v1/responses", {**body, "stream": stream})
            lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
            reply = json.loads(lines[-1][6:])["response"] if stream else response.json()
            items += reply["output"]
            for call in [item for item in reply["output"] if item["type"] == "function_call"]:
                output = {"type": "function_call_output", "call_id": call["call_id"]}
                items.append({**output, "output": "The count is 3."})
        served.post(f"/sessions/{response.headers[SESSION]}/reward", {"reward": 1})
    (episode,) = recorded(tmp_path / "run")
    assert episode.turns == 2 and episode.tool_calls >= 1 and episode.reward == 1
    assert [message.role for message in episode.messages[:4]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert list(episode.tools) == question["tools"]
    assert episode.tokens is not None
    assert episode.tokens.mask.count(1) == episode.usage.completion_tokens
    check_tokens(episode, player(), temperature=TEMPERATURE)


def test_both_apis_may_take_turns_in_a_session(tmp_path: Path) -> None:
    with serving_model(record=tmp_path / "run") as served:
        messages = list[Any](QUESTION)
        session = say(served.client(), messages)
        text = messages[-1]["content"]
        items = [*QUESTION, {"role": "assistant", "content": text}]
        body = {"input": [*items, {"role": "user", "content": "And then?"}], "seed": 2}
        response = served.post("/v1/responses", {**body, "max_output_tokens": 6})
        assert response.headers[SESSION] == session
    (episode,) = recorded(tmp_path / "run")
    assert episode.turns == 2
    check_tokens(episode, random_policy())
