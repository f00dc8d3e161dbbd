"""The log of a training run: `log.jsonl`, one line per logged step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from ludus.data.atomic_write import write_atomically
from ludus.data.config_diff import dump_json
from ludus.data.jsonable import to_jsonable
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

RECORD_FILE = "training.json"
LOG_FILE = "log.jsonl"
EPISODES_FILE = "episodes.jsonl"
"""The episodes that a GRPO run was trained on."""
_TAIL_BLOCK_BYTES = 1 << 20


def append_log(out: Path, line: Mapping[str, Any]) -> None:
    """Add a line to the log. A torn one at its end, of a writer that was killed, goes first."""
    text = dump_json(to_jsonable(line)) + "\n"
    try:
        with _open_log(out) as file:
            file.seek(_end_of_last_line(file))
            file.truncate()
            file.write(text.encode())
    except OSError as error:
        raise RunError(f"{out / LOG_FILE} cannot be written: {error.strerror or error}.") from error


def truncate_log(out: Path, step: int) -> None:
    """Drop what was logged after `step`: the run goes on from a checkpoint that was made there."""
    kept = [line for line in read_log(out) if line.get("step", 0) <= step]
    write_atomically(out / LOG_FILE, "".join(dump_json(line) + "\n" for line in kept))


def read_log(out: Path) -> Iterator[JsonObject]:
    """The log, line by line. What is no line of it is passed over."""
    try:
        with (out / LOG_FILE).open("rb") as file:
            for line in file:
                found = _parse_line(line)
                if found is not None:
                    yield found
    except FileNotFoundError:
        return


def logged_values(
    logged: Sequence[Mapping[str, Any]], key: str = "loss"
) -> list[tuple[int, float]]:
    """Steps and losses, where they are numbers; `eval_loss` for the test split."""
    found = ((line.get("step"), line.get(key)) for line in logged)
    return [(step, loss) for step, loss in found if step is not None and loss is not None]


def _parse_line(line: bytes) -> JsonObject | None:
    try:
        found = from_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _open_log(out: Path) -> IO[bytes]:
    file = out / LOG_FILE
    return file.open("r+b") if file.exists() else file.open("w+b")


def _end_of_last_line(file: IO[bytes]) -> int:
    """Where the last whole line ends; lines are short, so a block from the end holds it."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - _TAIL_BLOCK_BYTES)
    file.seek(start)
    return start + file.read().rfind(b"\n") + 1
