"""Rows to learn from, and who watches: small, and the same every time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ludus.rollout.progress import PhaseProgress
from ludus.train.config import TrainConfig

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
QUICK: dict[str, Any] = {"batch_size": 2, "precision": "fp32", "device": "cpu"}


def quick(**more: Any) -> TrainConfig:
    return TrainConfig(**{**QUICK, "epochs": 1.0, **more})


def call(number: int) -> dict[str, Any]:
    made = {"name": "add", "arguments": {"a": number, "note": 'so "be" it'}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"call{number}", "type": "function", "function": made}],
    }


def talk(number: int, turns: int = 2) -> list[dict[str, Any]]:
    """A question, some calls with their results, and an answer."""
    said: list[dict[str, Any]] = [{"role": "user", "content": f"Add up to {number}."}]
    for turn in range(1, turns):
        place = 10 * number + turn
        result = {"role": "tool", "tool_call_id": f"call{place}", "name": "add"}
        said += [call(place), {**result, "content": f"sum {place}"}]
    return [*said, {"role": "assistant", "content": "Done: " + "and " * (number % 5) + "done."}]


def sft_row(number: int, turns: int = 2) -> dict[str, Any]:
    return {"messages": talk(number, turns), "tools": TOOLS}


def dpo_row(number: int, turns: int = 3) -> dict[str, Any]:
    said = talk(number, turns)
    worse = [*talk(number, 2)[1:-1], {"role": "assistant", "content": "No idea."}]
    return {"prompt": said[:1], "chosen": said[1:], "rejected": worse, "tools": TOOLS}


def write(file: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def sft_data(folder: Path, rows: int = 8, test: int = 0) -> Path:
    write(folder / "train.jsonl", map(sft_row, range(rows)))
    if test:
        write(folder / "test.jsonl", map(sft_row, range(100, 100 + test)))
    return folder


class Seen:
    """Remembers what it is told, and may want to stop after some step."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.began: tuple[int, int | None] | None = None
        self.lines: list[dict[str, Any]] = []
        self.words: list[str] = []
        self.phases: list[PhaseProgress] = []
        self._stop_after = stop_after
        self._asked = 0

    def phase(self, progress: PhaseProgress) -> None:
        self.phases.append(progress)

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        self.began = total_steps, resumed_from

    def step(self, line: Mapping[str, Any]) -> None:
        self.lines.append(dict(line))

    def say(self, words: str) -> None:
        self.words.append(words)

    @property
    def stopping(self) -> str | None:
        self._asked += 1
        return "interrupted" if self._asked == self._stop_after else None


def curve(out: Path) -> list[dict[str, Any]]:
    """The log, but for how long it took."""
    lines = map(json.loads, (out / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def same(one: Any, other: Any, close: Callable[[Any], Any]) -> bool:
    """Whether two curves are the same up to rounding."""
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(a[key] == close(b[key]) for key in a)
        for a, b in zip(one, other, strict=True)
    )
