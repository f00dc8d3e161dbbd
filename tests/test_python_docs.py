"""The Python of docs/python.md runs as it stands, in order, in one folder."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
from pathlib import Path

import pytest
from policy.models import saved
from tiny_tokenizers import of_family

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
SCRIPT, PROGRESS, EVENTS, NOTEBOOK, TRAINING = BLOCKS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python")


def run(code: str, folder: Path, *, in_loop: bool = False) -> None:
    """Run a block as a script does, or as a notebook's cell: with a loop that runs already."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        compiled = compile(code, "docs/python.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if not in_loop:
            assert not compiled.co_flags & inspect.CO_COROUTINE
            exec(compiled, {})
            return

        async def cell() -> None:
            awaited = eval(compiled, {})
            if awaited is not None:
                await awaited

        asyncio.run(cell())
    finally:
        os.chdir(before)


def test_the_script_collects_and_curates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(SCRIPT, folder)
    assert capsys.readouterr().out.splitlines()[0] == "1.0 60"
    assert (folder / "data" / "sums" / "test.jsonl").is_file()


@pytest.mark.parametrize("in_loop", [False, True])
def test_progress_is_shown_in_a_script_and_in_a_notebook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], in_loop: bool
) -> None:
    run(PROGRESS, tmp_path, in_loop=in_loop)
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == "oracle 1.0"
    assert [line for line in shown.err.splitlines() if line.endswith(" plays")] == [
        "oracle plays",
        "chance plays",
    ]


def test_a_function_takes_the_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(EVENTS, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.endswith(" 1.0") for line in lines)


def test_a_notebook_awaits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(NOTEBOOK, folder, in_loop=True)
    assert capsys.readouterr().out == "4 ['oracle', 'random']\n"


@pytest.mark.slow
@pytest.mark.parametrize("in_loop", [False, True])
def test_models_are_trained_in_a_script_and_in_a_notebook(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_loop: bool
) -> None:
    run(SCRIPT, folder)
    (tmp_path / "data").symlink_to(folder / "data")
    model = saved(tmp_path / "model", of_family("qwen3"))
    run(TRAINING.replace("MODEL", str(model)), tmp_path, in_loop=in_loop)
    assert capsys.readouterr().out.splitlines()[-1] == "1 models/sums-grpo"
