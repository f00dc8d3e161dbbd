"""The tools of MCP servers, played: of a small server that fails on request, and of a real one."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_stub import chat_stub
from rollout.small_runs import read, run
from world import serving

from envs.mcp_specs import SERVER, session_of, spec_of
from ludus import connect
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import RandomAgent
from ludus.check import run_checks
from ludus.data.messages import Image, Text
from ludus.environment.mixture import parse_mixture
from ludus.environment.registry import find_environment, registered_environments
from ludus.environment.source_file import recorded_name
from ludus.errors import FactoryFailed, MissingExtra
from ludus.policy.agent_factory import AgentConfig, agent_from_config
from ludus.rollout import CollectConfig

CALCULATOR = f"{sys.executable} -m mcp_server_calculator"


async def test_the_tools_of_a_server_are_passed_through(tmp_path: Path) -> None:
    async with connect(spec_of(tmp_path)).session() as session:
        tools = {tool.name: tool for tool in session.tools}
        assert [*tools][:2] == ["echo", "count"] and [*tools][-2:] == ["environ", "submit"]
        assert tools["echo"].input_schema["required"] == ["text"]
        first = await session.reset(seed=1)
        assert all(part in str(first.content) for part in ("2 ** 20", "Be kind.", "submit"))
        assert (await session.call("echo", {"text": "héllo"})).content == "héllo"
        assert (await session.call("echo", {"text": 41})).content == "41"
        picture = (await session.call("picture")).content
        assert [type(block) for block in picture] == [Text, Image]
        resources = str((await session.call("resources")).content).splitlines()
        assert resources == ["a note", "[note://2]", "[audio/wav]"]
        assert (await session.call("structured")).content == '{"sum": 3}'


async def test_errors_of_tools_are_shown_and_the_episode_goes_on(tmp_path: Path) -> None:
    async with session_of(spec_of(tmp_path)) as session:
        failed = await session.call("fail", {"text": "No such row."})
        assert (failed.content, failed.malformed) == ("Error: No such row.", False)
        assert (await session.call("refuse")).error == "Not like this."
        assert (await session.call("ecko")).malformed
        assert (await session.call("submit", {})).malformed
        unknown = {"type": "call_tool", "tool_name": "ecko", "arguments": {}}
        assert (await session.step(unknown)).observation["error"]["error_type"] == "tool_not_found"
        result = await session.call("submit", {"answer": "395.0"})
        assert (result.reward, result.done) == (1.0, True)


async def test_the_name_of_the_submit_tool_is_free(tmp_path: Path) -> None:
    async with session_of(spec_of(tmp_path, command=f"{SERVER} --also submit")) as session:
        assert (await session.call("submit")).done is False
        assert (await session.call("submit_answer", {"answer": "1"})).reward == 0.0


@pytest.mark.parametrize(
    "spec", ["mcp", "mcp:x#missing.jsonl", "mcp:'x", "mcp+http://", "mcp+https://a:b@host/mcp"]
)
async def test_a_wrong_spec_is_explained(spec: str) -> None:
    with pytest.raises(FactoryFailed):
        async with connect(spec).session():
            pass


def test_a_command_is_one_spec() -> None:
    for spec in (
        "mcp:python server.py",
        "mcp:server --level=3",
        "mcp:server --db=x.db#tasks.jsonl",
        "mcp:server --tables 'a,b'#tasks.jsonl",
        "mcp+http://localhost:8000/mcp#tasks.jsonl",
    ):
        assert parse_mixture(spec).specs == (spec,)
        assert recorded_name(spec) == find_environment(spec).id == spec
        assert parse_mixture(f"{spec}#=3, catch").specs == (f"{spec}#", "catch")


async def test_a_small_server_passes_the_checks(tmp_path: Path) -> None:
    # Without the tools that break an episode on purpose, which random calls would find.
    spec = spec_of(tmp_path, command=f"{SERVER} --only echo count")
    report = await run_checks(spec, seeds=2)
    assert report.passed, report.failures


async def test_a_served_server_is_played_by_a_client(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    with serving(spec) as served:
        async with session_of(served.url) as session:
            assert [tool.name for tool in session.tools][-1] == "submit"
            assert (await session.call("count")).content == "1"
            assert (await session.call("fail", {"text": "no"})).error == "no"
            assert (await session.call("submit", {"answer": "395"})).reward == 1.0


async def test_a_server_from_pypi_is_played_by_the_random_agent(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, command=CALCULATOR, server={"restart": False})
    await run(tmp_path / "run", RandomAgent(), spec=spec, n=2, concurrency=1)
    for episode in read(tmp_path / "run"):
        assert (episode.error, episode.reward, episode.done) == (None, 0.0, True)
        assert [tool["function"]["name"] for tool in episode.tools] == ["calculate", "submit"]


async def test_a_server_from_pypi_is_played_by_a_model(tmp_path: Path) -> None:
    def reply(request: dict[str, Any]) -> dict[str, Any]:
        """Calculates what stands between the words of the question, then submits the result."""
        *_, last = request["messages"]
        function = {"name": "submit", "arguments": json.dumps({"answer": last["content"]})}
        if last["role"] == "user":
            formula = re.search(r"What is (.*)\?", last["content"])
            assert formula is not None
            arguments = json.dumps({"expression": formula.group(1)})
            function = {"name": "calculate", "arguments": arguments}
        call = {"id": f"call-{last['role']}", "type": "function", "function": function}
        return {"tool_calls": [call]}

    spec = spec_of(tmp_path, command=CALCULATOR, server={"restart": False})
    with chat_stub(reply) as stub:
        agent = agent_from_config(
            AgentConfig(provider="openai", model="stub", llm_endpoint=stub.url, concurrency=1)
        )
        async with agent:
            await run(tmp_path / "run", agent, spec=spec, n=2, concurrency=1)
    episodes = read(tmp_path / "run")
    assert [(each.error, each.reward, each.turns) for each in episodes] == [(None, 1.0, 2)] * 2
    answers = {message.text for each in episodes for message in each.messages}
    assert {"395", "1048576"} & answers


def test_edited_tasks_are_another_run(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "1 + 1?", "expected": 2}\n')
    mixture, config = parse_mixture(f"mcp:server#{tasks}"), CollectConfig()
    before = config.identity(mixture, OracleAgent())
    assert config.identity(mixture, OracleAgent()) == before
    tasks.write_text('{"prompt": "1 + 2?", "expected": 3}\n')
    assert config.identity(mixture, OracleAgent()) != before


def test_the_environments_are_registered_without_a_command() -> None:
    assert {"mcp", "mcp+http", "mcp+https"} <= set(registered_environments())
    assert find_environment("mcp").tools is None


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"ludus-rl\[mcp\]"):
        find_environment("mcp:server")
