"""`ludus train` as a user types it, on a model and rows that are made on the spot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from policy.conversations import ENDED, PLAYED
from policy.models import saved
from program import LUDUS, run_ludus
from students import student, template_of
from typer.testing import CliRunner, Result

from cli.collecting import NOBODY
from ludus.cli.main import app
from ludus.errors import LudusError

ALONE = {**NOBODY, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
"""A user without keys, on one core."""
QUICK = ("--device", "cpu", "--report-to", "none", "--batch-size", "4")


def train(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    env = {**ALONE, **more.pop("env", {})}
    return run_ludus("train", *map(str, arguments), env=env, **more)


def here(*arguments: str | Path) -> Result:
    """The same in this process, which has the trainers loaded already."""
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def refused(done: Result) -> str:
    """The one line with which it ended."""
    assert isinstance(done.exception, LudusError), done.output
    said = str(done.exception)
    assert "\n" not in said and done.stdout == ""
    return said


@contextmanager
def started(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A training that goes on meanwhile."""
    process = subprocess.Popen(
        [*LUDUS, "train", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ALONE, "COLUMNS": "200"},
        # Where the tests run in the background, interrupts are ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            process.communicate()


def a_model(folder: Path) -> Path:
    return saved(folder, student(template_of("qwen3")))


def rows(folder: Path, count: int = 12, test: int = 0) -> Path:
    """Conversations with tools, as `ludus curate --to sft` writes them."""
    return _written(folder, [(ENDED, PLAYED)[number % 2] for number in range(count)], test)


def pairs(folder: Path, count: int = 8, **more: Any) -> Path:
    """Two endings to one question, as `ludus curate --to dpo` writes them."""
    prompt, good = ENDED["messages"][:-1], ENDED["messages"][-1:]
    bad = [{"role": "assistant", "content": "I do not know."}]
    pair = {"prompt": prompt, "chosen": good, "rejected": bad, "tools": ENDED["tools"]}
    pair |= more
    return _written(folder, [pair] * count, 0)


def _written(folder: Path, found: list[dict[str, Any]], test: int) -> Path:
    folder.mkdir()
    text = "".join(json.dumps(row) + "\n" for row in found)
    (folder / "train.jsonl").write_text(text)
    if test:
        (folder / "test.jsonl").write_text("".join(text.splitlines(True)[:test]))
    return folder


def events(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines()]


def logged(out: Path) -> list[dict[str, Any]]:
    text = (out / "log.jsonl").read_text()
    return events(text[: text.rfind("\n") + 1])
