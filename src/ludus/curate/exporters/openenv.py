"""A line of OpenEnv's `results.jsonl`.

OpenEnv's records have no place for tools, and none for attempts without a reward: the tools go
into `extra`, and an unscored attempt has a reward of null. It is never a zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ludus.curate.importers import ours
from ludus.data.episode import Episode
from ludus.data.tools import JsonObject, arguments_of

_KNOWN = ("episode_id", "done", "task", "rewards")


def row(episode: Episode) -> JsonObject:
    return {
        "episode_id": episode.episode_id,
        "messages": [message.model_dump(mode="json") for message in episode.messages],
        "reward": episode.reward,
        "done": episode.done,
        "tool_trace": list(_trace(episode)),
        "metrics": {"turns": episode.turns, "tool_calls": episode.tool_calls},
        "verify_metrics": episode.rewards,
        "artifacts": {},
        "task": _task(episode.task),
        "extra": {
            "tools": list(episode.tools),
            "rewards": list(episode.rewards),
            ours.NAME: ours.carried(episode, known=_KNOWN),
        },
    }


def _task(task: JsonObject) -> Any:
    """The importer puts what is no object under this one name."""
    if task.keys() == {"task"} and not isinstance(task["task"], dict):
        return task["task"]
    return task or None


def _trace(episode: Episode) -> Iterator[JsonObject]:
    """Every call that was answered, as OpenEnv's harness notes them beside the messages."""
    answers = {
        message.tool_call_id: (at, message)
        for at, message in enumerate(episode.messages)
        if message.role == "tool"
    }
    last = max((at for at, _ in answers.values()), default=None)
    for call in (call for message in episode.messages for call in message.tool_calls or ()):
        if call.id in answers:
            at, answer = answers[call.id]
            ended = episode.done and at == last
            result = {"data": answer.text, "done": ended, "metadata": {}, "error": None}
            # OpenEnv has only objects here; what the model wrote is in the message.
            arguments = arguments_of(call.function.arguments) or {}
            yield {"tool_name": call.function.name, "arguments": arguments, "result": result}
