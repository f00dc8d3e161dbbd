"""Tasks for the tools of an MCP server: task files, selection and scoring."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from envs.mcp_specs import SERVER, spec_of
from ludus import connect
from ludus.envs.mcp.tasks import Expected, is_correct, load_task_file
from ludus.errors import ConfigError, ExecutionFailed, InvalidAction

TASK = '{"prompt": "x", "expected": 1}'


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
        [server]
        env = { GREETING = "hello $HOME" }
        [[tasks]]
        prompt = "Write four letters."
        check = "my_checks.py:length"
        full_length = 8
        [[tasks]]
        prompt = "Count."
        check = "my_checks.py:counted"
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
    ("name", "text", "message"),
    [
        ("t.jsonl", "", "t.jsonl: tasks"),
        ("t.jsonl", '{"prompt": "x"}', "line 1: a task needs either `expected` or `check`"),
        ("t.jsonl", '{"expected": 1}', "line 1: prompt"),
        ("t.jsonl", f'{TASK}\n\n{{"prompt": 3, "expected": 1}}', "t.jsonl, line 3: prompt: "),
        ("t.jsonl", f'{TASK}\n{{"prompt": "x", "expected": {{}}}}', "line 2: expected: "),
        ("t.jsonl", f"{TASK}\n[]", "line 2: input should be"),
        ("t.jsonl", f"{TASK}\n{{", "line 2, column 2"),
        ("t.toml", "tasks = [", "parsed"),
        ("t.toml", "tasks = " + "[" * 3000, "nested"),
        ("t.json", "[" * 100_000, "nested"),
        ("t.toml", '[[tasks]]\nprompt = "x"\nexpected = {}', "t.toml, task 1: expected: "),
        ("t.json", f'[{TASK}, {{"prompt": 3, "expected": 1}}]', "t.json, task 2: prompt: "),
        ("t.json", f'{{"tasks": [{TASK}], "sever": {{}}}}', "Did you mean 'server'?"),
        ("t.json", f'{{"tasks": [{TASK}], "server": {{"env": 3}}}}', "t.json: server.env: "),
        ("t.csv", "x", ".jsonl, .json or .toml"),
    ],
)
def test_a_wrong_task_file_is_explained(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_task_file(tmp_path / name)
