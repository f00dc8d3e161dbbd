"""Any JSONL whose lines have `messages` and a reward: the common ground of all tools.

So are the rows that `ludus curate --to sft` writes, which come back in the groups they were in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ludus.curate.importers.chat import as_json, content_of, messages_of, tools_of
from ludus.curate.importers.making import asked_in, episode_of
from ludus.curate.importers.reading import (
    Malformed,
    Unreadable,
    a_name,
    a_number,
    an_object,
    each_line,
)
from ludus.data.episode import Episode, Fault
from ludus.data.messages import Message
from ludus.data.tools import JsonObject
from ludus.errors import RunError

_MESSAGES = ("messages", "conversations", "conversation")
_REWARDS = ("reward", "score")
_IDS = ("episode_id", "id")
# Headers and bodies of one's own may hold a key: only these are taken over.
_AGENT = frozenset(
    {"agent", "provider", "model", "reasoning_effort", "seed", "stop"}
    | {"temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty"}
)


def files(path: Path) -> list[Path]:
    """The file that is named, or every .jsonl file in a folder."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.jsonl"))
    if not found:
        raise RunError(f"There is no .jsonl file in {path}. Name the file itself.")
    return found


def others(path: Path) -> list[Path]:
    """The files of a folder that are not read."""
    if not path.is_dir():
        return []
    return sorted(file for file in path.iterdir() if file.is_file() and file.suffix != ".jsonl")


def read(path: Path) -> Iterator[Episode | Unreadable]:
    return each_line(path, _episode)


def _episode(line: JsonObject) -> Iterator[Episode]:
    messages, task = _messages(line), line.get("task")
    whole = task is None or isinstance(task, dict)
    yield episode_of(
        episode_id=a_name(_first(line, _IDS), "id") or "",
        environment=a_name(line.get("environment"), "environment") or "messages",
        task=task if whole else {"task": task},
        # One word is as likely the name of a data set as that of a task.
        group=None if whole else [task, asked_in(messages)],
        group_id=a_name(line.get("group_id"), "group_id"),
        seed=line.get("seed"),
        agent=_agent(line),
        messages=messages,
        tools=tools_of(line.get("tools")),
        reward=a_number(_first(line, _REWARDS), "reward"),
        error=_fault(line.get("error")),
    )


def _first(line: JsonObject, names: tuple[str, ...]) -> Any:
    return next((line[name] for name in names if line.get(name) is not None), None)


def _agent(line: JsonObject) -> JsonObject:
    """Who played: an object with settings, or a name, which is the model's where no other is."""
    agent, model = line.get("agent"), a_name(line.get("model"), "model")
    told: JsonObject = {"agent" if model else "model": agent}
    if not isinstance(agent, str):
        told = an_object(agent or {}, "agent")
    told = told | ({"model": model} if model else {})
    return {name: value for name, value in told.items() if name in _AGENT and value is not None}


def _fault(value: Any) -> Fault | None:
    """What broke it: an exception in words, or an object that says more."""
    if not value:
        return None
    told = value if isinstance(value, dict) else {}
    message = str(told.get("message") or (value if isinstance(value, str) else as_json(value)))
    kind = told.get("kind") or told.get("type") or _exception(message)
    by_model = told.get("where") == "model"
    return Fault(kind=str(kind), where="model" if by_model else "environment", message=message)


def _exception(message: str) -> str:
    """The class of `json.JSONDecodeError: ...` and of `ValueError(...)`."""
    name = message.replace("(", ":").partition(":")[0].rpartition(".")[2]
    return name if name.isidentifier() and name.endswith(("Error", "Exception")) else "Error"


def _messages(line: JsonObject) -> tuple[Message, ...]:
    """The conversation, with the system prompt that some files keep apart from it."""
    messages, system = messages_of(_said(line)), content_of(line.get("system"))
    if not system or (messages and messages[0].role == "system"):
        return messages
    return Message(role="system", content=system), *messages


def _said(line: JsonObject) -> Any:
    """The conversation, under whichever name, or in two parts as trainers have it."""
    for name in _MESSAGES:
        if name in line:
            return line[name]
    if "prompt" not in line or "completion" not in line:
        raise Malformed("there are neither messages in it nor a prompt and a completion")
    return [*_turns(line["prompt"], "user"), *_turns(line["completion"], "assistant")]


def _turns(value: Any, role: str) -> list[Any]:
    return value if isinstance(value, list) else [{"role": role, "content": value}]
