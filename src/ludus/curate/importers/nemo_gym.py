"""Rollouts of NVIDIA's NeMo Gym: what its rollout collection writes, one line an attempt.

A line has the request (`responses_create_params`), the reply (`response`), the reward, and beside
them the task's own fields and whatever the verifier added. Gym writes a reward of 0 also where the
infrastructure failed, and says so in other fields: here such an attempt has no reward.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.curate.importers import ours
from ludus.curate.importers.chat import messages_of, tools_of
from ludus.curate.importers.making import episode_of
from ludus.curate.importers.nemo_gym_outcome import (
    ended,
    fault_of,
    is_part,
    reward_of,
    rewards_of,
    usage_of,
)
from ludus.curate.importers.reading import Malformed, Unreadable, an_object, each_line
from ludus.curate.importers.responses import chat_of, items_of, replies_of
from ludus.data.episode import Episode
from ludus.data.lines import numbered_lines
from ludus.data.messages import Message
from ludus.data.tools import JsonObject
from ludus.errors import RunError

INDEX = "_ng_task_index"
# What stands in a line and is not the task's.
_TAKEN = frozenset(
    {
        *("responses_create_params", "response", "output", "trajectory", ours.NAME),
        *("reward", "reward_components", "mask_sample", "instance_config"),
        *("agent_ref", "skills_ref", "task_source"),
        *("turns_used", "finished_naturally", "terminated", "truncated"),
        *("failure_kind", "failure_reason", "infrastructure_error"),
        *("error", "error_message", "error_class", "error_stage"),
    }
)
# What a request says of the task, and not of the model's sampling.
_REQUEST = ("input", "instructions", "tools", "tool_choice", "text", "prompt", "metadata")
_PROMPT = frozenset({"input", "tools", "instructions", "model"})
_NAMES = ("task_idx", "task_index", "task_id", "id", "uuid", "instance_id", "verifier_metadata")
_PEEK = 10


def read(path: Path) -> Iterator[Episode | Unreadable]:
    fields = _task_fields(path)
    return each_line(path, lambda line: iter([_episode(line, fields)]))


def files(path: Path) -> list[Path]:
    """The files of rollouts: the one that is named, or all in a folder, with their failures.

    Gym leaves inputs, metrics and verdicts beside them, also as JSONL. What is a rollout is seen
    from the first lines of a file.
    """
    if not path.is_dir():
        return [path]
    found = [file for file in _inside(path) if _has_rollouts(file)]
    if not found:
        raise RunError(
            f"There are no rollouts of NeMo Gym in {path}: no .jsonl file in it has a line with "
            "`response`. Name the file that its rollout collection wrote."
        )
    return found


def others(path: Path) -> list[Path]:
    """The files of a folder that are left alone."""
    rollouts = set(files(path)) if path.is_dir() else set()
    return [file for file in _inside(path) if file not in rollouts] if path.is_dir() else []


def _inside(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file())


def _has_rollouts(file: Path) -> bool:
    if file.suffix != ".jsonl":
        return False
    for _, line in islice(numbered_lines(file), _PEEK):
        try:
            fields = from_json(line)
        except ValueError:
            continue
        return isinstance(fields, dict) and _is_rollout(fields)
    return False


def _is_rollout(line: JsonObject) -> bool:
    return any(name in line for name in ("response", "output", "_ng_failure_class"))


def _task_fields(path: Path) -> frozenset[str] | None:
    """The names of the task's own fields, where the inputs of the collection lie beside it.

    The line alone does not tell the task's fields from those that the verifier has added.
    """
    stem = path.stem.removesuffix("_failures")
    inputs = path.with_name(f"{stem}_materialized_inputs.jsonl")
    if inputs == path or not inputs.is_file():
        return None
    names: set[str] = set()
    for _, line in numbered_lines(inputs):
        try:
            names.update(from_json(line))
        except (ValueError, TypeError):
            continue
    return frozenset(names)


def _episode(line: JsonObject, fields: frozenset[str] | None) -> Episode:
    if not _is_rollout(line):
        raise Malformed("there is no `response` in it: this is no rollout")
    params = an_object(line.get("responses_create_params") or {}, "responses_create_params")
    response = _response(line)
    agent_ref = line.get("agent_ref")
    name = agent_ref.get("name") if isinstance(agent_ref, dict) else agent_ref
    stop_reason, done = ended(line, response)
    episode = episode_of(
        environment=str(name or line.get("task_source") or "nemo_gym"),
        messages=_messages(params, response),
        tools=tools_of(params.get("tools") or response.get("tools")),
        reward=reward_of(line),
        task=_task(line, fields),
        group=_group(line, params, response),
        agent=_agent(params, response, agent_ref),
        rewards=rewards_of(line),
        done=done,
        stop_reason=stop_reason,
        error=fault_of(line, response),
        usage=usage_of(response.get("usage")),
    )
    return ours.restored(episode, line.get(ours.NAME))


def _task(line: JsonObject, fields: frozenset[str] | None) -> JsonObject:
    """What is left of a line; only the task's `fields` where they are known."""
    return {
        name: value
        for name, value in line.items()
        if name == INDEX
        or (is_free(name) and (name in fields if fields is not None else not is_part(name, value)))
    }


def is_free(name: str) -> bool:
    """Whether a field of a task can stand in a line under this name."""
    return name not in _TAKEN and not name.startswith(("_ng_", "ng_"))


def _response(line: JsonObject) -> JsonObject:
    found = line.get("response") or line.get("_ng_failure_partial_response")
    if found is None:
        return {"output": line.get("output")}
    return an_object(found, "response")


def _messages(params: JsonObject, response: JsonObject) -> tuple[Message, ...]:
    given = items_of(params.get("input"), "input")
    output = response.get("output")
    if output is None and isinstance(response.get("output_text"), str):
        output = [{"role": "assistant", "content": response["output_text"]}]
    # Some environments keep what they showed first apart from what followed.
    given += items_of(response.get("seed_obs"), "seed_obs")
    parts = [given, *replies_of(given, output)]
    said = [message for part in parts for message in chat_of(part)]
    if params.get("instructions"):
        said.insert(0, {"role": "system", "content": params["instructions"]})
    return messages_of(said)


def _group(line: JsonObject, params: JsonObject, response: JsonObject) -> Any:
    """What attempts at the same task have in common.

    The number of the task alone is not enough: files of different data sets share numbers. The
    request alone is not enough where the environment writes the prompt only when it is played.
    """
    request = {name: params[name] for name in _REQUEST if params.get(name)}
    if isinstance(request.get("metadata"), dict):  # Each repetition has its own seed in there.
        request["metadata"] = {k: v for k, v in request["metadata"].items() if k != "extra_body"}
    asked = items_of(params.get("input"), "input")
    names: JsonObject = {}
    if not any(item.get("role") == "user" for item in asked):
        names = {name: line[name] for name in _NAMES if name in line}
        names["group_id"] = response.get("group_id")
    return [line.get(INDEX), request, names]


def _agent(params: JsonObject, response: JsonObject, agent_ref: Any) -> JsonObject:
    """Who played, and with which settings; those that are not set are left out."""
    said = {key: value for key, value in params.items() if key not in _PROMPT}
    said["max_tokens"] = said.pop("max_output_tokens", None)
    said["model"] = response.get("model") or params.get("model") or None
    said["agent_ref"] = agent_ref
    return {key: value for key, value in said.items() if value is not None}
