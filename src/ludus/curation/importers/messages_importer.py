"""Import any JSONL whose lines have `messages` (or prompt and completion) and a reward.

Rows of `ludus curate --to sft` keep their groups.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ludus.curation.importers.base import (
    FormatError,
    UnreadableRecord,
    as_object,
    build_episode,
    build_fault,
    list_files,
    parse_name,
    parse_number,
    prompt_group_key,
    read_jsonl,
    require_object,
)
from ludus.curation.importers.chat_messages import (
    parse_content,
    parse_messages,
    parse_tools,
    wrap_chat_content,
)
from ludus.data.episode import Episode, Fault
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

_MESSAGE_KEYS = ("messages", "conversations", "conversation")
_REWARD_KEYS = ("reward", "score")
_ID_KEYS = ("episode_id", "id")
# Only these: other settings, such as custom headers, may contain API keys.
_AGENT_FIELDS = frozenset(
    {"agent", "provider", "model", "reasoning_effort", "seed", "stop"}
    | {"temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty"}
)


class MessagesImporter:
    """Imports JSONL files of chat messages, whichever tool wrote them."""

    def find_files(self, path: Path) -> list[Path]:
        """Return the file itself, or all .jsonl files of a folder."""
        if not path.is_dir():
            return [path]
        files = sorted(path.glob("*.jsonl"))
        if not files:
            raise RunError(f"There is no .jsonl file in {path}. Name the file itself.")
        return files

    def unread_files(self, path: Path) -> list[Path]:
        if not path.is_dir():
            return []
        return [file for file in list_files(path) if file.suffix != ".jsonl"]

    def read_episodes(self, path: Path) -> Iterator[Episode | UnreadableRecord]:
        return read_jsonl(path, _parse_messages_line)


def _parse_messages_line(line: JsonObject) -> Iterator[Episode]:
    key = next((name for name in _MESSAGE_KEYS if name in line), None)
    if key is not None:
        messages = parse_messages(line[key])
    elif "prompt" in line and "completion" in line:
        prompt = wrap_chat_content(line["prompt"], "user")
        messages = parse_messages([*prompt, *wrap_chat_content(line["completion"], "assistant")])
    else:
        raise FormatError("it has neither messages nor prompt and completion")
    # Some files store the system prompt separately.
    system = parse_content(line.get("system"))
    if system and not (messages and messages[0].role == "system"):
        messages = (Message(role="system", content=system), *messages)
    task = line.get("task")
    is_object = task is None or isinstance(task, dict)
    yield build_episode(
        episode_id=parse_name(_first_value(line, _ID_KEYS), "id") or "",
        environment=parse_name(line.get("environment"), "environment") or "messages",
        task=task if is_object else {"task": task},
        # A single word may be the name of a data set as well as that of a task.
        group=None if is_object else [task, prompt_group_key(messages)],
        group_id=parse_name(line.get("group_id"), "group_id"),
        seed=line.get("seed"),
        agent=_agent_fields(line),
        messages=messages,
        tools=parse_tools(line.get("tools")),
        reward=parse_number(_first_value(line, _REWARD_KEYS), "reward"),
        error=_parse_messages_fault(line.get("error")),
    )


def _first_value(line: JsonObject, names: tuple[str, ...]) -> Any:
    return next((line[name] for name in names if line.get(name) is not None), None)


def _agent_fields(line: JsonObject) -> JsonObject:
    """Return the agent's settings. `agent` may be an object, or the name of an agent or model."""
    agent, model = line.get("agent"), parse_name(line.get("model"), "model")
    if isinstance(agent, str):
        settings: JsonObject = {"agent" if model else "model": agent}
    else:
        settings = require_object(agent or {}, "agent")
    if model:
        settings = {**settings, "model": model}
    return {
        name: value
        for name, value in settings.items()
        if name in _AGENT_FIELDS and value is not None
    }


def _parse_messages_fault(value: Any) -> Fault | None:
    """Parse the `error` of a line with messages: a string, or an object with more fields."""
    if not value:
        return None
    fields = as_object(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    message = str(fields.get("message") or text)
    kind = fields.get("kind") or fields.get("type")
    if not kind:
        # The class name of `json.JSONDecodeError: ...` and of `ValueError(...)`.
        name = message.replace("(", ":").partition(":")[0].rpartition(".")[2]
        is_exception = name.isidentifier() and name.endswith(("Error", "Exception"))
        kind = name if is_exception else "Error"
    return build_fault(kind, message, by_model=fields.get("where") == "model")
