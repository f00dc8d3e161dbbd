"""How MCP servers start, break and end: as processes, and behind a URL."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from world import serving, wait_until

from envs.mcp_specs import SERVER, session_of, spec_of
from ludus import connect
from ludus.agents.scripted import ScriptedAgent
from ludus.check import run_checks
from ludus.data.tool_schema import ToolCall
from ludus.errors import ExecutionFailed, FactoryFailed
from ludus.rollout import Assignment, run_episode


def processes(word: str) -> list[int]:
    """The processes whose command lines contain this word."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if word in command:
            pids.append(int(folder.name))
    return pids


def group_members(group: int) -> list[str]:
    """The states of the processes of a process group, without zombies."""
    lines = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    fields = [line.rpartition(")")[2].split() for line in lines]
    return [state for state, _, pgrp, *_ in fields if pgrp == str(group) and state != "Z"]


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


async def test_a_server_that_dies_breaks_its_episode_alone(tmp_path: Path) -> None:
    script = ToolCall(name="die"), ToolCall(name="submit", arguments={"answer": "395"})
    spec = spec_of(tmp_path)
    async with connect(spec).session() as session:
        broken = await run_episode(session, ScriptedAgent(*script), Assignment.of(spec, seed=0))
        assert (broken.reward, broken.stop_reason) == (None, "broken")
        assert broken.error is not None
        assert broken.error.message == "The MCP server ended: Out of cheese."
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


async def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(FactoryFailed, match="'no-such-program' was not found"):
        async with session_of(spec_of(tmp_path, command="no-such-program --stdio")):
            pass


async def test_a_url_without_an_mcp_server_is_named(tmp_path: Path) -> None:
    with serving("catch") as served, pytest.raises(ExecutionFailed, match="Check the URL"):
        async with session_of(
            spec_of(tmp_path).replace(f"mcp:{SERVER}", f"mcp+{served.url}/state")
        ):
            pass


async def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 1/0"
    with pytest.raises(ExecutionFailed, match="ZeroDivisionError") as raised:
        async with session_of(spec_of(tmp_path, command=command)):
            pass
    assert command in str(raised.value)


@pytest.mark.parametrize(
    "spec",
    ["mcp:no-such-program", f"mcp:{sys.executable} -c 1/0", "mcp+http://127.0.0.1:9/mcp"],
)
async def test_the_checks_do_not_advise_to_change_code_for_a_server_that_does_not_start(
    spec: str,
) -> None:
    (finding,) = (await run_checks(spec)).findings
    assert (finding.check, finding.verdict, finding.advice) == ("starts", "fail", "")


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Neither a server that ignores the end of its input, nor its child."""
    tag = f"tag-{os.getpid()}-left"
    spec = spec_of(tmp_path, command=f"{SERVER} --stubborn --child --tag {tag}")
    async with session_of(spec):
        (pid,) = processes(tag)
        assert len(group_members(pid)) == 2
    assert processes(tag) == []
    wait_until(lambda: group_members(pid) == [])


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
    with pytest.raises(ExecutionFailed, match=f"Cannot connect to {served.url}/mcp"):
        async with session_of(spec):
            pass
