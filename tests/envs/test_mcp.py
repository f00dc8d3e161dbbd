"""MCP servers as environments: a small one that fails on request, and a real one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chat_stub import chat_stub
from rollout.small_runs import read, run
from world import serving, wait_until

from ludus import connect
from ludus.agents.random_agent import RandomAgent
from ludus.agents.scripted import ScriptedAgent
from ludus.check import run_checks
from ludus.client.session import Session
from ludus.data.content import Image, Text
from ludus.data.tool_schema import ToolCall
from ludus.environment.mixture import parse_mixture
from ludus.environment.registry import find_environment, registered_environments
from ludus.environment.source_file import recorded_name
from ludus.envs.mcp.scoring import is_correct
from ludus.envs.mcp.task_file import Expected, load_task_file
from ludus.errors import (
    ConfigError,
    ExecutionFailed,
    FactoryFailed,
    InvalidAction,
    MissingExtra,
)
from ludus.policy.agent_factory import AgentConfig, agent_from_config
from ludus.rollout import Assignment, run_episode

SERVER = f"{sys.executable} -S {Path(__file__).with_name('mcp_server.py')}"
CALCULATOR = f"{sys.executable} -m mcp_server_calculator"
TASKS = [
    {"prompt": "What is 17 * 23 + 4?", "expected": 395},
    {"prompt": "What is 2 ** 20?", "expected": 1048576},
]


def spec_of(folder: Path, tasks: Any = TASKS, *, command: str = SERVER, **settings: Any) -> str:
    """A spec with a task file in this folder; `settings` are other fields of the file."""
    file = folder / "tasks.json"
    file.write_text(json.dumps({"tasks": tasks, **settings}))
    return f"mcp:{command}#{file}"


@asynccontextmanager
async def session_of(spec: str) -> AsyncIterator[Session]:
    async with connect(spec).session() as session:
        await session.reset(seed=0)
        yield session


def processes(word: str) -> list[int]:
    """The processes whose command lines hold this word."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if word in command:
            found.append(int(folder.name))
    return found


def group_members(group: int) -> list[str]:
    """The states of the processes of a group, without those that only wait to be reaped."""
    lines = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    fields = [line.rpartition(")")[2].split() for line in lines]
    return [state for state, _, pgrp, *_ in fields if pgrp == str(group) and state != "Z"]


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


@pytest.mark.parametrize(("restart", "counts"), [(True, ["1", "1"]), (False, ["1", "2"])])
async def test_every_episode_has_a_new_server(
    tmp_path: Path, restart: bool, counts: list[str]
) -> None:
    spec = spec_of(tmp_path, server={"restart": restart})
    async with connect(spec).session() as session:
        seen = []
        for _ in range(2):
            await session.reset(seed=0)
            seen.append((await session.call("count")).content)
        assert seen == counts


async def test_tasks_are_selected_by_seed_by_index_or_given(tmp_path: Path) -> None:
    async with connect(spec_of(tmp_path)).session() as session:
        for task, prompt in (
            ({"seed": 2}, "17 * 23"),
            ({"seed": 3}, "2 ** 20"),
            ({"seed": 3, "index": 0}, "17 * 23"),
            ({"split": "train", "index": 1}, "2 ** 20"),
            ({"seed": 3, "prompt": "Your name?", "expected": ["Ada", "Grace"]}, "Your name?"),
        ):
            assert prompt in str((await session.reset(**task)).content)
        assert (await session.call("submit", {"answer": " ada"})).reward == 1.0
        for wrong in ({"index": 2}, {"prompt": "x"}, {"check": "os:getcwd"}):
            with pytest.raises(InvalidAction):
                await session.reset(**wrong)
    async with connect(f"mcp:{SERVER}").session() as session:
        with pytest.raises(InvalidAction, match="task file"):
            await session.reset(seed=1)


async def test_a_server_that_dies_breaks_its_episode_alone(tmp_path: Path) -> None:
    script = ToolCall(name="die"), ToolCall(name="submit", arguments={"answer": "395"})
    spec = spec_of(tmp_path)
    async with connect(spec).session() as session:
        broken = await run_episode(session, ScriptedAgent(*script), Assignment.of(spec, seed=0))
        assert (broken.reward, broken.stop_reason) == (None, "broken")
        assert broken.error is not None
        assert {"3", "cheese"} <= {*re.findall(r"\w+", broken.error.message)}
        with pytest.raises(ExecutionFailed, match="Reset"):
            await session.call("echo", {"text": "a new server knows nothing of this episode"})
        # The same session, and another server.
        scored = await run_episode(session, ScriptedAgent(script[1]), Assignment.of(spec, seed=0))
        assert (scored.reward, scored.error) == (1.0, None)


async def test_a_call_that_hangs_is_ended(tmp_path: Path) -> None:
    tag = f"tag-{os.getpid()}-hang"
    spec = spec_of(tmp_path, command=f"{SERVER} --tag {tag}", server={"call_timeout": 0.3})
    async with session_of(spec) as session:
        with pytest.raises(ExecutionFailed, match=r"longer than 0\.3 s"):
            await session.call("hang")
        assert processes(tag) == []


@pytest.mark.parametrize(
    ("command", "complaint"),
    [("no-such-program", "no-such-program"), (f"{sys.executable} -c 1/0", "ZeroDivisionError")],
)
async def test_a_server_that_does_not_start_says_why(
    tmp_path: Path, command: str, complaint: str
) -> None:
    with pytest.raises(ExecutionFailed, match=complaint):
        async with session_of(spec_of(tmp_path, command=command)):
            pass


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Neither a server that ignores the end of its input, nor its child."""
    tag = f"tag-{os.getpid()}-left"
    spec = spec_of(tmp_path, command=f"{SERVER} --stubborn --child --tag {tag}")
    async with session_of(spec):
        (pid,) = processes(tag)
        assert len(group_members(pid)) == 2
    assert processes(tag) == []
    wait_until(lambda: group_members(pid) == [])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a server has to notice by itself")
def test_a_server_dies_with_its_parent(tmp_path: Path) -> None:
    tag = f"tag-{os.getpid()}-orphan"
    spec = spec_of(tmp_path, command=f"{SERVER} --stubborn --tag {tag}")
    program = (
        "import asyncio, ludus\n"
        "async def main():\n"
        f"    async with ludus.connect({spec!r}).session() as session:\n"
        "        print(len(session.tools), flush=True)\n"
        "        await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    try:
        assert parent.stdout.readline().strip() == "11"
        assert len(processes(tag)) == 2
    finally:
        parent.kill()
        parent.communicate()
    wait_until(lambda: processes(tag) == [])


CHECKS = """
def length(attempt):
    return len(attempt.answer) / attempt.task.full_length

async def counted(attempt):
    names = [call.name for call in attempt.calls]
    return names == ["count"] and await attempt.call("count") == "2"

def text(attempt):
    return "good"

def broken(attempt):
    return 1 / 0
"""


async def test_a_function_checks_the_answer_and_the_server(tmp_path: Path) -> None:
    (tmp_path / "my_checks.py").write_text(CHECKS)
    (tmp_path / "tasks.toml").write_text(
        """
        check = "my_checks.py:length"
        [server]
        env = { GREETING = "hello $HOME" }
        [[tasks]]
        prompt = "Write four letters."
        full_length = 8
        [[tasks]]
        prompt = "Count."
        check = "my_checks:counted"
        [[tasks]]
        prompt = "Anything."
        check = "my_checks.py:text"
        [[tasks]]
        prompt = "Anything."
        check = "my_checks.py:broken"
        [[tasks]]
        prompt = "Anything."
        check = "my_checks.py:brokken"
        """
    )
    async with connect(f"mcp:{SERVER}#{tmp_path}/tasks.toml").session() as session:
        await session.reset(index=0)
        greeting = await session.call("environ", {"text": "GREETING"})
        assert greeting.content == f"hello {os.environ['HOME']}"
        assert (await session.call("submit", {"answer": "four"})).reward == 0.5
        await session.reset(index=1)
        await session.call("count")
        assert (await session.call("submit", {"answer": ""})).reward == 1.0
        await session.reset(index=2)
        with pytest.raises(ExecutionFailed, match="'good'"):
            await session.call("submit", {"answer": ""})
        await session.reset(index=3)
        with pytest.raises(ExecutionFailed, match=r"my_checks\.py:13 in broken: ZeroDivision"):
            await session.call("submit", {"answer": ""})
        with pytest.raises(ExecutionFailed, match="'broken'"):
            await session.reset(index=4)


@pytest.mark.parametrize(
    ("answer", "expected", "correct"),
    [
        ("41", 41, True),
        (" 41.0 ", 41, True),
        ("1,048,576", 1048576, True),
        ("42", 41, False),
        ("forty-one", 41, False),
        ("nan", 41, False),
        ("0.3", 0.1 + 0.2, True),
        ("New  york", "new York", True),
        ("York", "New York", False),
        ("True", True, True),
        ("1", True, False),
        ("b", ["a", "b"], True),
        ("c", ["a", "b"], False),
    ],
)
def test_an_answer_is_compared(answer: str, expected: Expected, correct: bool) -> None:
    assert is_correct(answer, expected) is correct


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("t.jsonl", "", "tasks"),
        ("t.jsonl", '{"prompt": "x"}', "`expected` or `check`"),
        ("t.jsonl", '{"expected": 1}', "prompt"),
        ("t.jsonl", "{", "parsed"),
        ("t.toml", "tasks = [", "parsed"),
        ("t.json", '{"tasks": [{"prompt": "x", "expected": 1}], "sever": {}}', "sever"),
        ("t.csv", "x", ".jsonl, .json or .toml"),
    ],
)
def test_a_wrong_task_file_is_explained(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load_task_file(tmp_path / name)


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


async def test_a_server_at_a_url_is_played_in_sessions_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"prompt": "Catch it. Was it caught?", "expected": True}))
    with serving("catch") as served:
        spec = f"mcp+{served.url}/mcp#{file}"
        async with session_of(spec) as session:
            assert [tool.name for tool in session.tools] == ["move", "submit"]
            for _ in range(2):
                first = await session.reset(seed=0)
                assert "Rows left to fall: 9" in str(first.content)
                moved = await session.call("move", {"direction": "stay"})
                assert "Rows left to fall: 8" in str(moved.content)
            assert (await session.call("move", {"direction": "up"})).error is not None
            assert len(served.sessions) == 1
            assert (await session.call("submit", {"answer": "true"})).reward == 1.0
        assert len(served.sessions) == 0
        async with session_of(spec) as session:
            await served.sessions.close()
            with pytest.raises(ExecutionFailed):
                await session.call("move", {"direction": "stay"})
    with pytest.raises(ExecutionFailed, match="connect"):
        async with session_of(spec):
            pass


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


def test_the_environments_are_registered_without_a_command() -> None:
    assert {"mcp", "mcp+http", "mcp+https"} <= set(registered_environments())
    assert find_environment("mcp").tools is None


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"ludus-rl\[mcp\]"):
        find_environment("mcp:server")
