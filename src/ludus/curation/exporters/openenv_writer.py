"""Convert episodes to records of OpenEnv's `results.jsonl`.

OpenEnv's records have no fields for tools and system prompt, so both are stored in `extra`, and
`messages` begins with the user's message. An unscored attempt has a reward of null, not 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from pydantic_core import to_json

from ludus.curation.importers.base import EXTRA_KEY, extra_fields
from ludus.data.episode import Episode
from ludus.data.episode_reader import episodes
from ludus.data.files import atomic_file
from ludus.data.hub import OPENENV_RESULTS_FILE
from ludus.data.tool_schema import JsonObject, parse_arguments

_NATIVE_FIELDS = ("episode_id", "done", "task", "rewards")


def build_record(episode: Episode, *, lossless: bool = True) -> JsonObject:
    """Build the record of an episode; `lossless` adds what the importer needs to restore it."""
    messages = [message.model_dump(mode="json") for message in episode.messages]
    system = list(takewhile(lambda message: message["role"] == "system", messages))
    # The importer wraps a task that is not an object.
    task = episode.task
    is_wrapped = task.keys() == {"task"} and not isinstance(task["task"], dict)
    carried = {EXTRA_KEY: extra_fields(episode, known=_NATIVE_FIELDS)} if lossless else {}
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


def write_records(run: Path) -> Path:
    """Write the episodes of a run folder as `results.jsonl`, without fields that only Ludus has."""
    file = run / OPENENV_RESULTS_FILE
    with atomic_file(file) as draft, draft.open("wb") as out:
        for episode in episodes(run / "episodes.jsonl"):
            line = build_record(episode, lossless=False)
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
