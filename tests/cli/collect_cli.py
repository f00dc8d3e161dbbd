"""Run `ludus collect` in tests, and read its run folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from chat_stub import Stub
from ludus_process import run_ludus, start_ludus

from ludus.data.episode import Episode
from ludus.data.episode_reader import episodes

TESTS = Path(__file__).parents[1]
PYTHONPATH = os.pathsep.join(map(str, (TESTS, TESTS.parent / "src")))
"""The tests' environments, and Ludus from this tree even where another one is installed."""
COUNTER = "world:Counter"
KEY = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
CLEAN_ENV = {
    **{name: "" for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "API_KEY")},
    "OPENAI_BASE_URL": "",
    **{name: "" for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE")},
    **{"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"},
    "PYTHONPATH": PYTHONPATH,
}
"""Environment variables without API keys, and with the tests' environments importable."""


def collect(
    *arguments: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    return run_ludus(
        "collect", *map(str, arguments), cwd=cwd, env={**CLEAN_ENV, **(env or {})}, **more
    )


def stub_args(stub: Stub, *arguments: str | Path, spec: str = COUNTER) -> list[str]:
    """Arguments for an agent that the stub answers."""
    return [spec, "--model", "stub", "--llm-endpoint", stub.url, *map(str, arguments)]


def start_collect(*arguments: str | Path) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start `ludus collect` in another process."""
    return start_ludus("collect", *arguments, env=CLEAN_ENV)


def read_episodes(folder: Path) -> list[Episode]:
    """Read the episodes of a run, sorted by id; every line must be complete."""
    journal = folder / "episodes.jsonl"
    assert journal.read_bytes().endswith(b"\n")
    return sorted(episodes(journal, strict=True), key=lambda episode: episode.episode_id)


def episode_indexes(folder: Path) -> list[int]:
    """The indexes of the recorded episodes in the plan, in order."""
    return [int(episode.episode_id[-6:]) for episode in read_episodes(folder)]


def read_summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def error_line(process: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The error message, which must be the only line on stderr."""
    assert process.returncode == code, process.stdout + process.stderr
    assert "Traceback" not in process.stderr
    assert process.stderr.count("\n") == 1, process.stderr
    return process.stderr
