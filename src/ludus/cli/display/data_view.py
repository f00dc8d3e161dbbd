"""Views of a row of a data set, of an evaluation and of a trained model, for `ludus show`."""

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


def find_row_file(data: Path) -> Path | None:
    """Find the file with rows that a path means; None if the folder has none."""
    if data.is_file():
        return data
    return next((data / name for name in _ROW_FILES if (data / name).is_file()), None)


def read_row(file: Path, key: str) -> JsonObject:
    """Read the row with this number, counted from 0, or of the episode with this id."""
    from ludus.curation.lint.lint_rows import read_lint_rows

    rows = (row for _, row in read_lint_rows(file))
    if key.isascii() and key.isdecimal():
        row = next(islice(rows, int(key), None), None)
    else:
        row = next((row for row in rows if key in (row.get(name) for name in _ID_KEYS)), None)
    if row is None:
        count = sum(1 for _ in read_lint_rows(file))
        held = f"It holds rows 0 to {count - 1:,}." if count else "It is empty."
        raise RunError(f"There is no row {key!r} in {file}. {held}")
    return row


def print_row(out: Console, file: Path, key: str, row: JsonObject) -> None:
    """Print a training row: a conversation, or a prompt with its completions."""
    from ludus.cli.display.console import escape_control_chars
    from ludus.cli.display.transcript import print_message
    from ludus.curation.importers.base import FormatError
    from ludus.curation.importers.chat_messages import parse_messages

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
            for message in parse_messages(messages):
                print_message(out, message)
        except (FormatError, ValueError):
            out.print_json(json.dumps(messages))


def print_evaluation(out: Console, folder: Path, summary: JsonObject) -> None:
    """Print the metrics of each candidate, and how to see one of its episodes."""
    from rich.table import Table
    from rich.text import Text

    from ludus.cli.display.console import escape_control_chars

    settings, candidates = summary["settings"], summary["candidates"]
    title = f"{settings['episodes']:,} episodes of {settings['environment']}, seed "
    out.print(escape_control_chars(f"{title}{settings['seed']}"), markup=False, style="bold")
    table = Table(box=None, pad_edge=False)
    for name in ("", *(one["label"] for one in candidates)):
        table.add_column(Text(escape_control_chars(name)))
    metrics = dict.fromkeys(name for one in candidates for name in one["metrics"])
    for metric in metrics:
        cells = []
        for candidate in candidates:
            cell = ""
            if (estimate := candidate["metrics"].get(metric)) is not None:
                cell, low, high = f"{estimate['value']:.3f}", estimate["low"], estimate["high"]
                cell += "" if low is None else f" ({low:.3f} to {high:.3f})"
            cells.append(cell)
        table.add_row(Text(escape_control_chars(metric)), *cells)
    out.print(table)
    out.print(f"Report:     {folder / 'README.md'}", markup=False, soft_wrap=True)
    example = folder / candidates[0]["label"]
    out.print(f"An episode: ludus show {example} 0", markup=False, soft_wrap=True)


def print_training(out: Console, folder: Path) -> bool:
    """Print what a model was trained on and its results; False if no training is recorded."""
    from rich.table import Table
    from rich.text import Text

    from ludus.cli.display.console import escape_control_chars
    from ludus.train.output.record import read_record

    training = read_record(folder)
    if training is None:
        return False
    out.print(escape_control_chars(f"{folder}  {training.kind} of {training.model}"), style="bold")
    metrics = training.figures
    loss = reward = None
    if metrics is not None:
        loss = _format_change(metrics.first_loss, metrics.last_loss)
        reward = _format_change(metrics.first_reward, metrics.last_reward)
    data, environment = training.data, training.environment
    facts = {
        "data": f"{data.rows:,} rows of {data.path}" if data is not None else None,
        "environment": environment.spec if environment is not None else None,
        "steps": f"{metrics.steps:,}" if metrics is not None else "not finished",
        "loss": loss,
        "reward": reward,
        "command": training.command,
    }
    table = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        if fact is not None:
            table.add_row(Text(name, style="bold"), Text(escape_control_chars(fact)))
    out.print(table)
    env = environment.spec if environment is not None else "ENV"
    for line in (
        f"Collect:  ludus collect {env} --provider hf --model {folder}",
        f"Evaluate: ludus eval {env} -c base=hf:{training.model} -c trained=hf:{folder}",
        *([f"Diagnose: ludus diagnose {folder}"] if training.kind == "grpo" else []),
    ):
        out.print(line, markup=False, soft_wrap=True)
    return True


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


def _format_change(first: float | None, last: float | None) -> str | None:
    return None if first is None or last is None else f"{first:.4g} -> {last:.4g}"
