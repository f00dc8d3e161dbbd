"""Read any JSONL whose lines have `messages` (or prompt and completion) and a reward.

The `results.jsonl` of Prime Intellect's verifiers is one. Rows of `ludus curate --to sft` keep
their groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ludus.curation.formats.base import (
    FormatError,
    UnreadableRecord,
    as_object,
    build_episode,
    build_fault,
    parse_score,
    prompt_group_key,
    read_jsonl,
    require_object,
)
from ludus.curation.formats.chat_messages import parse_messages, parse_tools, wrap_content
from ludus.data.episode import Episode
from ludus.data.tool_schema import JsonObject

# Only these: other settings, such as custom headers, may contain API keys.
_AGENT_FIELDS = frozenset(
    {"agent", "provider", "model", "reasoning_effort", "seed", "stop"}
    | {"temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty"}
)


def read_messages(path: Path) -> Iterator[Episode | UnreadableRecord]:
    """Yield an episode for each line of a JSONL file of chat messages, whichever tool wrote it."""
    return read_jsonl(path, _parse_line)


def _parse_line(line: JsonObject) -> Iterator[Episode]:
    key = next((name for name in ("messages", "conversations") if name in line), None)
    if key is not None:
        messages = parse_messages(line[key])
    elif "prompt" in line and "completion" in line:
        prompt = wrap_content(line["prompt"], "user")
        messages = parse_messages([*prompt, *wrap_content(line["completion"], "assistant")])
    else:
        raise FormatError("it has neither messages nor prompt and completion")
    task = line.get("task")
    is_object = task is None or isinstance(task, dict)
    agent = line.get("agent") or {}
    agent = {"model": agent} if isinstance(agent, str) else require_object(agent, "agent")
    if line.get("model"):
        agent = {**agent, "model": line["model"]}
    error, reward = line.get("error"), line.get("reward")
    fault = as_object(error)
    yield build_episode(
        episode_id=_parse_name(line, "episode_id") or _parse_name(line, "id") or "",
        environment=_parse_name(line, "environment") or "messages",
        task=task if is_object else {"task": task},
        # A single word may be the name of a data set or of a task.
        group=None if is_object else [task, prompt_group_key(messages)],
        group_id=_parse_name(line, "group_id"),
        seed=line.get("seed"),
        agent={k: v for k, v in agent.items() if k in _AGENT_FIELDS and v is not None},
        messages=messages,
        tools=parse_tools(line.get("tools", line.get("tool_defs"))),
        reward=parse_score(line.get("score") if reward is None else reward, "reward"),
        error=build_fault(
            fault.get("kind") or fault.get("type") or fault.get("error") or "Error",
            fault.get("message") or error,
            by_model=fault.get("where") == "model",
        )
        if error
        else None,
    )


def _parse_name(line: JsonObject, name: str) -> str | None:
    """Parse an id or name, which may be a number; None if it is missing or empty."""
    value = line.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FormatError(f"{name} is not a name")
    return str(value)
