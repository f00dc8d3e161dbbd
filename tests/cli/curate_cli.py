"""Run `ludus curate` and `ludus import` in tests, and write runs for them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from ludus_process import run_ludus

from cli.collect_cli import CLEAN_ENV
from ludus.data.episode import Episode
from ludus.data.messages import Call, Function, Message

TOOL = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
_STEP = re.compile(r"(\w[\w -]*?) {2,}([\d,]+) +([\d,]+)(?: |$)")


def ludus(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the program without API keys and without the Hub."""
    env = {**CLEAN_ENV, "HF_HUB_OFFLINE": "1", **more.pop("env", {})}
    return run_ludus(*map(str, arguments), env=env, **more)


def curate(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return ludus("curate", *arguments, **more)


def stdout_of(process: subprocess.CompletedProcess[str]) -> str:
    """The output of a command that must succeed without errors or warnings."""
    assert (process.returncode, process.stderr) == (0, ""), process.stdout + process.stderr
    return process.stdout


def run_without_module(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the program as if this module were not installed."""
    script = (
        f"import sys; sys.modules[{module!r}] = None; "
        f"sys.argv = ['ludus', *{[str(argument) for argument in arguments]!r}]; "
        "from ludus.cli.main import main; main()"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def make_episode(
    name: str,
    *,
    task: str = "owl",
    reward: float | None = 1.0,
    turns: int = 1,
    environment: str = "wordle",
    **more: Any,
) -> Episode:
    """Build an episode whose replies are unlike those of any other name."""
    replies: list[Message] = []
    for turn in range(turns):
        arguments = json.dumps({"word": f"{name}{turn}"})
        call = Call(id=f"c{turn}", function=Function(name="guess", arguments=arguments))
        replies += [
            Message(role="assistant", reasoning_content=f"Maybe {name}.", tool_calls=(call,)),
            Message(role="tool", content=f"{name}{turn} is noted.", tool_call_id=f"c{turn}"),
        ]
    prompt = (
        Message(role="system", content="Guess the word."),
        Message(role="user", content=f"It is about {task}."),
    )
    return Episode(
        **{
            "episode_id": name,
            "stop_reason": "done",
            "reward": reward,
            "environment": environment,
            "task": {"about": task},
            "group_id": task,
            "agent": {"provider": "test"},
            "messages": (*prompt, *replies),
            "tools": (TOOL,),
            "done": True,
            "turns": turns,
            "tool_calls": turns,
            **more,
        }
    )


def write_run(folder: Path, *episodes: Episode) -> Path:
    """Write a run folder with these episodes."""
    folder.mkdir(parents=True)
    (folder / "episodes.jsonl").write_bytes(b"".join(each.to_line() for each in episodes))
    return folder


def write_large_run(folder: Path, count: int = 20_000) -> Path:
    """Write a run that takes seconds to curate."""
    folder.mkdir(parents=True)
    line = make_episode("name-of-it", task="task-of-it", turns=4).to_line()
    with (folder / "episodes.jsonl").open("wb") as file:
        for number in range(count):
            named = line.replace(b"name-of-it", b"n%d" % number)
            file.write(named.replace(b"task-of-it", b"t%d" % (number // 4)))
    return folder


def read_rows(folder: Path, side: str = "train") -> list[dict[str, Any]]:
    lines = (folder / f"{side}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def kept_ids(folder: Path) -> list[str]:
    """The ids of the episodes that became rows."""
    return [row["episode_id"] for row in read_rows(folder)]


def printed_steps(output: str) -> list[tuple[str, int, int]]:
    """Reason, removed and remaining episodes of each step in the printed table."""
    matches = (_STEP.match(line) for line in output.splitlines())
    return [(match[1], _number(match[2]), _number(match[3])) for match in matches if match]


def card_steps(folder: Path) -> list[tuple[str, int, int]]:
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip(" `") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    head = next(cells for cells in table if "removed" in cells)
    reason, removed, left = (head.index(name) for name in ("step", "removed", "kept"))
    below = table[table.index(head) + 3 :]
    steps = below[: below.index([])]
    return [(cells[reason], _number(cells[removed]), _number(cells[left])) for cells in steps]


def read_metadata(folder: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads((folder / "curation.json").read_text(encoding="utf-8"))
    return metadata


def _number(text: str) -> int:
    return int(text.replace(",", ""))
