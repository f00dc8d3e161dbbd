"""Transcripts: an episode with its reward and costs, or a training row with its conversations."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli.display.console import console, escape_control_chars, print_text
from ludus.cli.display.formatting import format_count, format_dollars, plural
from ludus.errors import RunError

if TYPE_CHECKING:
    from ludus.data.episode import Episode
    from ludus.data.messages import Message
    from ludus.data.tool_schema import JsonObject

_ROLE_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "magenta"}
_ROW_FILES = ("train.jsonl", "test.jsonl", "results.jsonl")
_ID_KEYS = ("episode_id", "chosen_id", "rejected_id")


def print_transcript(episode: Episode) -> None:
    """Print a whole episode."""
    agent = " ".join(
        str(episode.agent[key]) for key in ("provider", "model") if key in episode.agent
    )
    step = f"step {episode.agent['step']}" if "step" in episode.agent else ""
    seed = "" if episode.seed is None else f"seed {episode.seed}"
    facts = [episode.environment, seed, agent, step]
    header = f"{episode.episode_id}  {' · '.join(fact for fact in facts if fact)}"
    print_text(header, "bold")
    turn = 0
    for message in episode.messages:
        print_message(message)
        if message.role == "assistant":
            _print_turn_notes(episode, turn)
            turn += 1
    if turn < len(episode.tutor_replies):  # The agent has said nothing in its last turn.
        _print_turn_notes(episode, turn)
    reward = "unscored" if episode.reward is None else f"reward {episode.reward:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in episode.rewards.items())
    usage = episode.usage
    results = [
        f"{reward} ({parts})" if parts else reward,
        episode.stop_reason.value,
        plural(episode.turns, "turn"),
        plural(episode.malformed_calls, "malformed call") if episode.malformed_calls else "",
        f"{format_count(usage.total_tokens)} tokens" if usage.total_tokens else "",
        format_dollars(usage.cost),
    ]
    style = "bold" if episode.reward is not None and episode.reward > 0 else "bold yellow"
    line = " · ".join(result for result in results if result)
    print_text(line, style)
    if (error := episode.error) is not None:
        _print_indented(f"{error.kind} ({error.where}): {error.message}", "red")


def print_message(message: Message, *, title: str | None = None) -> None:
    """Print a message below its role, or below `title`."""
    style = _ROLE_STYLES[message.role]
    print_text(title or message.role, f"bold {style}")
    if message.reasoning_content:
        _print_indented(message.reasoning_content, "dim italic")
    if message.text:
        _print_indented(message.text, "dim" if message.role == "system" else "")
    for call in message.tool_calls or ():
        _print_indented(f"{call.function.name}({call.function.arguments})", style)


def _print_turn_notes(episode: Episode, turn: int) -> None:
    """Print whether the action of a turn was random, and what the tutor would have replied."""
    if turn in episode.explored_turns:
        _print_indented("(a random action)", "dim")
    advice = episode.tutor_replies[turn] if turn < len(episode.tutor_replies) else None
    if advice is not None:
        print_message(advice, title="tutor")


def _print_indented(text: str, style: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console().print(Padding(Text(escape_control_chars(text), style=style), (0, 0, 0, 2)))


def find_viewable_rows(data: Path) -> Path | None:
    """Find the file whose rows can be printed; None if the folder has none."""
    if data.is_file():
        return data
    return next((data / name for name in _ROW_FILES if (data / name).is_file()), None)


def read_row(file: Path, key: str) -> JsonObject:
    """Read a row by its number, from 0, or by the id of its episode."""
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


def print_row(file: Path, key: str, row: JsonObject) -> None:
    """Print a training row: a conversation, or a prompt with completions."""
    from ludus.curation.formats.base import FormatError
    from ludus.curation.formats.chat_messages import parse_messages

    facts = [str(row[name]) for name in ("environment", "episode_id") if row.get(name)]
    if isinstance(row.get("reward"), int | float):
        facts.append(f"reward {row['reward']:g}")
    head = f"{file} row {key}  {' · '.join(facts)}".rstrip()
    print_text(head, "bold")
    conversations = {
        "": row.get("messages") or row.get("output") or row.get("prompt"),  # `output`: NeMo Gym
        **{name: row.get(name) for name in ("completion", "chosen", "rejected")},
    }
    for title, messages in conversations.items():
        if not isinstance(messages, list):
            continue
        if title:
            reward = row.get(f"{title}_reward")
            print_text(title if reward is None else f"{title} (reward {reward:g})", "bold yellow")
        try:
            for fields, message in zip(messages, parse_messages(messages), strict=True):
                masked = fields.get("weight") == 0
                print_message(message, title=f"{message.role} (no loss)" if masked else None)
        except (FormatError, ValueError):
            console().print_json(json.dumps(messages))
    if not any(isinstance(messages, list) for messages in conversations.values()):
        console().print_json(json.dumps(row))
