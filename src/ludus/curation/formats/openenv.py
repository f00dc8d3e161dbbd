"""Rollouts of `openenv collect`: `results.jsonl`, and `metadata.json` next to it; read and written.

OpenEnv's records have no fields for tools and system prompt, so Ludus stores both in `extra`, and
`messages` begins with the user's message. An unscored attempt has a reward of null, not 0.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from math import isfinite
from pathlib import Path

from pydantic_core import from_json, to_json

from ludus.curation.formats.base import (
    EXTRA_KEY,
    FormatError,
    UnreadableRecord,
    as_object,
    build_episode,
    extra_fields,
    parse_score,
    read_jsonl,
    require_object,
    restore_fields,
)
from ludus.curation.formats.chat_messages import parse_messages, parse_tools
from ludus.data.episode import Episode, StopReason
from ludus.data.episode_reader import episodes
from ludus.data.files import atomic_file
from ludus.data.hub import OPENENV_RESULTS_FILE
from ludus.data.tool_schema import JsonObject, parse_arguments

_NATIVE_FIELDS = ("episode_id", "done", "task", "rewards")
_REWARD_WORDS = frozenset({"reward", "rewards", "score"})


def read_openenv(path: Path) -> Iterator[Episode | UnreadableRecord]:
    metadata_path, metadata = path.with_name("metadata.json"), {}
    try:
        metadata = require_object(
            from_json(metadata_path.read_bytes().removeprefix(BOM_UTF8)), "the file"
        )
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        reason = f"{error}; model and environment of these episodes are unknown"
        yield UnreadableRecord(metadata_path, None, reason)
    yield from read_jsonl(path, partial(_parse_record, metadata))


def _parse_record(metadata: JsonObject, line: JsonObject) -> Iterator[Episode]:
    if "messages" not in line:
        raise FormatError("it has no messages")
    extra = require_object(line.get("extra") or {}, "extra")
    task, done = line.get("task"), bool(line.get("done"))
    agent, reward_names = ("provider", "model", "temperature"), extra.get("rewards")
    episode = build_episode(
        episode_id=str(line.get("episode_id") or ""),
        environment=str(metadata.get("env") or "openenv"),
        task=task if isinstance(task, dict) else None if task is None else {"task": task},
        messages=(
            *parse_messages(extra.get("system") or [], "system"),
            *parse_messages(line["messages"]),
        ),
        tools=parse_tools(line.get("tools", extra.get("tools"))),
        reward=parse_score(line.get("reward"), "reward"),
        agent={name: metadata[name] for name in agent if metadata.get(name) is not None},
        # Files that Ludus wrote list the metrics that are parts of the reward. In other files
        # they are called a reward or a score.
        rewards={
            name: value
            for name, value in as_object(line.get("verify_metrics")).items()
            if type(value) in (int, float)
            and isfinite(value)
            and (
                name in reward_names
                if isinstance(reward_names, list)
                else _REWARD_WORDS.intersection(name.lower().replace("/", "_").split("_"))
            )
        },
        done=done,
        # OpenEnv also sets `done` if the model answers without a call; otherwise turns ran out.
        stop_reason=None if done else StopReason.MAX_TURNS,
    )
    yield restore_fields(episode, extra.get(EXTRA_KEY))


def build_openenv_record(episode: Episode, *, lossless: bool = True) -> JsonObject:
    """Build OpenEnv's record of an episode; `lossless` adds fields to restore it on import."""
    messages = [message.model_dump(mode="json") for message in episode.messages]
    system = list(takewhile(lambda message: message["role"] == "system", messages))
    # The import wraps a task that is not an object.
    task = episode.task
    is_wrapped = task.keys() == {"task"} and not isinstance(task["task"], dict)
    carried = {EXTRA_KEY: extra_fields(episode, stored=_NATIVE_FIELDS)} if lossless else {}
    return {
        "episode_id": episode.episode_id,
        "messages": messages[len(system) :],
        "reward": episode.reward,
        "done": episode.done,
        "tool_trace": list(_tool_trace(episode)),
        "metrics": {"turns": episode.turns, "tool_calls": episode.tool_calls},
        "verify_metrics": episode.rewards,
        "artifacts": {},
        "task": task["task"] if is_wrapped else task or None,
        "extra": {
            "tools": list(episode.tools),
            "rewards": list(episode.rewards),
            "system": system,
            **carried,
        },
    }


def write_openenv_records(run: Path) -> Path:
    """Write a run's episodes as OpenEnv's `results.jsonl`, without fields that only Ludus has."""
    file = run / OPENENV_RESULTS_FILE
    with atomic_file(file) as draft, draft.open("wb") as out:
        for episode in episodes(run / "episodes.jsonl"):
            line = build_openenv_record(episode, lossless=False)
            out.write(to_json(line, inf_nan_mode="null") + b"\n")
    return file


def _tool_trace(episode: Episode) -> Iterator[JsonObject]:
    """Yield every call with a result, as OpenEnv's harness records them."""
    results = {
        message.tool_call_id: (at, message)
        for at, message in enumerate(episode.messages)
        if message.role == "tool"
    }
    last = max((at for at, _ in results.values()), default=None)
    for call in (call for message in episode.messages for call in message.tool_calls or ()):
        if call.id in results:
            at, message = results[call.id]
            done = episode.done and at == last
            result = {"data": message.text, "done": done, "metadata": {}, "error": None}
            # OpenEnv requires an object; the message has the original text.
            arguments = parse_arguments(call.function.arguments) or {}
            yield {"tool_name": call.function.name, "arguments": arguments, "result": result}
