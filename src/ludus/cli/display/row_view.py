"""View of a row of a data set, for `ludus show`."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from ludus.data.tool_schema import JsonObject

_ROW_FILES = ("train.jsonl", "test.jsonl", "results.jsonl")
_PAIR_KEYS = ("chosen", "rejected")
_ID_KEYS = ("episode_id", "chosen_id", "rejected_id")


def find_viewable_rows(data: Path) -> Path | None:
    """Find the file of which a row can be viewed; None if the folder has none."""
    if data.is_file():
        return data
    return next((data / name for name in _ROW_FILES if (data / name).is_file()), None)


def read_row(file: Path, key: str) -> JsonObject:
    """Read the row with this number, counted from 0, or of the episode with this id."""
    from ludus.curation.lint.runner import read_rows

    rows = (row for _, row in read_rows(file))
    if key.isascii() and key.isdecimal():
        row = next(islice(rows, int(key), None), None)
    else:
        row = next((row for row in rows if key in (row.get(name) for name in _ID_KEYS)), None)
    if row is None:
        count = sum(1 for _ in read_rows(file))
        held = f"It holds rows 0 to {count - 1:,}." if count else "It is empty."
        raise RunError(f"There is no row {key!r} in {file}. {held}")
    return row


def print_row(out: Console, file: Path, key: str, row: JsonObject) -> None:
    """Print a training row: a conversation, or a prompt with its completions."""
    from ludus.cli.display.console import escape_control_chars
    from ludus.cli.display.transcript import print_message
    from ludus.curation.formats.base import FormatError
    from ludus.curation.formats.chat_messages import parse_messages

    facts = [str(row[name]) for name in ("environment", "episode_id") if row.get(name)]
    if isinstance(row.get("reward"), int | float):
        facts.append(f"reward {row['reward']:g}")
    head = f"{file} row {key}  {' · '.join(facts)}".rstrip()
    out.print(escape_control_chars(head), markup=False, soft_wrap=True, style="bold")
    conversations = dict(_row_conversations(row))
    if not conversations:
        out.print_json(json.dumps(row))
    for title, messages in conversations.items():
        if title:
            out.print(title, style="bold yellow")
        try:
            for fields, message in zip(messages, parse_messages(messages), strict=True):
                masked = fields.get("weight") == 0
                print_message(out, message, title=f"{message.role} (no loss)" if masked else None)
        except (FormatError, ValueError):
            out.print_json(json.dumps(messages))


def _row_conversations(row: JsonObject) -> Iterator[tuple[str, Any]]:
    """Yield the conversations of a row with their titles."""
    if isinstance(row.get("messages"), list):
        yield "", row["messages"]
    elif isinstance(row.get("output"), list):  # NeMo Gym
        yield "", row["output"]
    elif isinstance(row.get("prompt"), list):
        yield "", row["prompt"]
        if isinstance(row.get("completion"), list):
            yield "completion", row["completion"]
        for side in _PAIR_KEYS:
            reward = row.get(f"{side}_reward")
            label = side if reward is None else f"{side} (reward {reward:g})"
            if isinstance(row.get(side), list):
                yield label, row[side]
