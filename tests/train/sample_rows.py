"""Small rows for SFT and DPO, the same every time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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


def tool_call(number: int) -> dict[str, Any]:
    """An assistant message with a call of `add`."""
    function = {"name": "add", "arguments": {"a": number, "note": 'so "be" it'}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"call{number}", "type": "function", "function": function}],
    }


def chat_messages(number: int, turns: int = 2) -> list[dict[str, Any]]:
    """A question, some calls with their results, and an answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Add up to {number}."}]
    for turn in range(1, turns):
        operand = 10 * number + turn
        result = {"role": "tool", "tool_call_id": f"call{operand}", "name": "add"}
        messages += [tool_call(operand), {**result, "content": f"sum {operand}"}]
    return [*messages, {"role": "assistant", "content": "Done: " + "and " * (number % 5) + "done."}]


def sft_row(number: int, turns: int = 2) -> dict[str, Any]:
    return {"messages": chat_messages(number, turns), "tools": TOOLS}


def dpo_row(number: int, turns: int = 3) -> dict[str, Any]:
    messages = chat_messages(number, turns)
    rejected = [*chat_messages(number, 2)[1:-1], {"role": "assistant", "content": "No idea."}]
    return {"prompt": messages[:1], "chosen": messages[1:], "rejected": rejected, "tools": TOOLS}


def write_jsonl(file: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def sft_data(folder: Path, rows: int = 8, test: int = 0) -> Path:
    """Write a data set for SFT, with a test split if it has rows."""
    write_jsonl(folder / "train.jsonl", map(sft_row, range(rows)))
    if test:
        write_jsonl(folder / "test.jsonl", map(sft_row, range(100, 100 + test)))
    return folder
