"""Any JSONL whose lines have `messages` and a reward: the common ground of all tools.

So are the rows that `ludus curate --to sft` writes, which come back in the groups they were in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ludus.curation.importers.base import (
    FormatError,
    UnreadableRecord,
    parse_name,
    parse_number,
    read_jsonl,
    require_object,
)
from ludus.curation.importers.chat_messages import (
    dump_json,
    parse_content,
    parse_messages,
    parse_tools,
)
from ludus.curation.importers.episode_builder import build_episode, prompt_identity
from ludus.data.episode import Episode, Fault
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

_MESSAGE_KEYS = ("messages", "conversations", "conversation")
_REWARD_KEYS = ("reward", "score")
_ID_KEYS = ("episode_id", "id")
# Headers and bodies of one's own may hold a key: only these are taken over.
_AGENT_FIELDS = frozenset(
    {"agent", "provider", "model", "reasoning_effort", "seed", "stop"}
    | {"temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty"}
)


def find_files(path: Path) -> list[Path]:
    """The file that is named, or every .jsonl file in a folder."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.jsonl"))
    if not found:
        raise RunError(f"There is no .jsonl file in {path}. Name the file itself.")
    return found


def unread_files(path: Path) -> list[Path]:
    """The files of a folder that are not read."""
    if not path.is_dir():
        return []
    return sorted(file for file in path.iterdir() if file.is_file() and file.suffix != ".jsonl")


def read_episodes(path: Path) -> Iterator[Episode | UnreadableRecord]:
    return read_jsonl(path, _parse_line)


def _parse_line(line: JsonObject) -> Iterator[Episode]:
    messages, task = _parse_conversation(line), line.get("task")
    whole = task is None or isinstance(task, dict)
    yield build_episode(
        episode_id=parse_name(_first_value(line, _ID_KEYS), "id") or "",
        environment=parse_name(line.get("environment"), "environment") or "messages",
        task=task if whole else {"task": task},
        # One word is as likely the name of a data set as that of a task.
        group=None if whole else [task, prompt_identity(messages)],
        group_id=parse_name(line.get("group_id"), "group_id"),
        seed=line.get("seed"),
        agent=_agent_fields(line),
        messages=messages,
        tools=parse_tools(line.get("tools")),
        reward=parse_number(_first_value(line, _REWARD_KEYS), "reward"),
        error=_parse_fault(line.get("error")),
    )


def _first_value(line: JsonObject, names: tuple[str, ...]) -> Any:
    return next((line[name] for name in names if line.get(name) is not None), None)


def _agent_fields(line: JsonObject) -> JsonObject:
    """Who played: an object with settings, or a name, which is the model's where no other is."""
    agent, model = line.get("agent"), parse_name(line.get("model"), "model")
    told: JsonObject = {"agent" if model else "model": agent}
    if not isinstance(agent, str):
        told = require_object(agent or {}, "agent")
    told = told | ({"model": model} if model else {})
    return {
        name: value for name, value in told.items() if name in _AGENT_FIELDS and value is not None
    }


def _parse_fault(value: Any) -> Fault | None:
    """What broke it: an exception in words, or an object that says more."""
    if not value:
        return None
    told = value if isinstance(value, dict) else {}
    message = str(told.get("message") or (value if isinstance(value, str) else dump_json(value)))
    kind = told.get("kind") or told.get("type") or _exception_name(message)
    by_model = told.get("where") == "model"
    return Fault(kind=str(kind), where="model" if by_model else "environment", message=message)


def _exception_name(message: str) -> str:
    """The class of `json.JSONDecodeError: ...` and of `ValueError(...)`."""
    name = message.replace("(", ":").partition(":")[0].rpartition(".")[2]
    return name if name.isidentifier() and name.endswith(("Error", "Exception")) else "Error"


def _parse_conversation(line: JsonObject) -> tuple[Message, ...]:
    """The conversation, with the system prompt that some files keep apart from it."""
    messages, system = parse_messages(_raw_messages(line)), parse_content(line.get("system"))
    if not system or (messages and messages[0].role == "system"):
        return messages
    return Message(role="system", content=system), *messages


def _raw_messages(line: JsonObject) -> Any:
    """The conversation, under whichever name, or in two parts as trainers have it."""
    for name in _MESSAGE_KEYS:
        if name in line:
            return line[name]
    if "prompt" not in line or "completion" not in line:
        raise FormatError("there are neither messages in it nor a prompt and a completion")
    return [*_as_messages(line["prompt"], "user"), *_as_messages(line["completion"], "assistant")]


def _as_messages(value: Any, role: str) -> list[Any]:
    return value if isinstance(value, list) else [{"role": role, "content": value}]
