"""Run `ludus train` in tests, on a tiny model and a few rows."""

from __future__ import annotations

import json
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ludus_process import run_ludus, start_ludus
from policy.conversations import ENDED, PLAYED
from policy.models import saved
from tiny_tokenizers import student, template_of

from cli.collect_cli import CLEAN_ENV
from cli.in_process import Result, Runner
from ludus.cli.flags import name_flags
from ludus.errors import LudusError

OFFLINE_ENV = {**CLEAN_ENV, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
"""No API keys, no Hub, one core."""
FAST_OPTIONS = ("--device", "cpu", "--report-to", "none", "--batch-size", "4")


def train(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    env = {**OFFLINE_ENV, **more.pop("env", {})}
    return run_ludus("train", *map(str, arguments), env=env, **more)


def invoke_train(*arguments: str | Path) -> Result:
    """Run `ludus train` in this process, which has imported the trainers already."""
    return Runner().invoke(["train", *map(str, arguments)])


def help_of(method: str, flag: str = "--help-all") -> str:
    """The help of a method in one line, without the frames of its panels."""
    return " ".join(train(method, flag).stdout.replace("│", " ").split())


def error_message(result: Result) -> str:
    """The error that ended the command, as the program prints it: one line, with flags."""
    assert isinstance(result.exception, LudusError), result.output
    message = name_flags(str(result.exception))
    assert "\n" not in message and result.stdout == ""
    return message


def start_train(*arguments: str | Path) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start `ludus train` in another process."""
    return start_ludus("train", *arguments, env=OFFLINE_ENV)


def save_model(folder: Path) -> Path:
    return saved(folder, student(template_of("qwen3")))


def write_rows(folder: Path, count: int = 12, test: int = 0) -> Path:
    """Write conversations with tools, as `ludus curate --to sft` does."""
    return _write_splits(folder, [(ENDED, PLAYED)[number % 2] for number in range(count)], test)


def write_pairs(folder: Path, count: int = 8, **more: Any) -> Path:
    """Write preference pairs, as `ludus curate --to dpo` does."""
    prompt, good = ENDED["messages"][:-1], ENDED["messages"][-1:]
    bad = [{"role": "assistant", "content": "I do not know."}]
    pair = {"prompt": prompt, "chosen": good, "rejected": bad, "tools": ENDED["tools"]}
    pair |= more
    return _write_splits(folder, [pair] * count, 0)


def _write_splits(folder: Path, rows: list[dict[str, Any]], test: int) -> Path:
    folder.mkdir()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(text)
    if test:
        (folder / "test.jsonl").write_text("".join(text.splitlines(True)[:test]))
    return folder


def parse_events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def read_log(out: Path) -> list[dict[str, Any]]:
    text = (out / "log.jsonl").read_text()
    return parse_events(text[: text.rfind("\n") + 1])
