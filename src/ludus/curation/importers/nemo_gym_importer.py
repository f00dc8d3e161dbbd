"""Import rollouts of NVIDIA's NeMo Gym, with one attempt per line.

A line has the request (`responses_create_params`), the reply (`response`), the reward, and next to
them the fields of the task and those that the verifier added. Gym also writes a reward of 0 if the
infrastructure failed: the failure is in other fields, which differ between agents.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.curation.importers.base import (
    EXTRA_KEY,
    FormatError,
    UnreadableRecord,
    as_object,
    build_episode,
    build_fault,
    describe_placeholder,
    list_files,
    parse_number,
    read_jsonl,
    require_object,
    restore_fields,
)
from ludus.curation.importers.chat_messages import parse_messages, parse_tools
from ludus.curation.importers.responses_api import (
    iter_new_items,
    parse_items,
    parse_response_usage,
    to_chat_messages,
)
from ludus.data.episode import Episode, Fault, StopReason
from ludus.data.json_files import numbered_lines
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

TASK_INDEX_KEY, ROLLOUT_INDEX_KEY = "_ng_task_index", "_ng_rollout_index"
# Fields of a line that do not belong to the task.
_RESERVED_FIELDS = frozenset(
    {
        *("responses_create_params", "response", "output", "trajectory", EXTRA_KEY),
        *("reward", "reward_components", "mask_sample", "instance_config"),
        *("agent_ref", "skills_ref", "task_source"),
        *("turns_used", "finished_naturally", "terminated", "truncated"),
        *("failure_kind", "failure_reason", "infrastructure_error"),
        *("error", "error_message", "error_class", "error_stage"),
        *("exception_type", "exception_message"),
    }
)
# Fields of a request that describe the task, not the sampling.
_REQUEST_FIELDS = ("input", "instructions", "tools", "tool_choice", "text", "prompt", "metadata")
_PROMPT_FIELDS = frozenset({"input", "tools", "instructions", "model"})
_TASK_ID_FIELDS = (
    "task_idx",
    "task_index",
    "task_id",
    "id",
    "uuid",
    "instance_id",
    "verifier_metadata",
)
# Roles of a judge's prompt, or fields of its verdict.
_COMPARED = (("response_1", "response_2"), ("response_a", "response_b"))
_PEEK_LINES = 10


class NemoGymImporter:
    """Imports the output files of NeMo Gym's rollout collection."""

    def find_files(self, path: Path) -> list[Path]:
        """Return the file itself, or all files of a folder with rollouts or failures.

        Gym writes inputs, metrics and verdicts into the same folder, also as JSONL. Rollouts are
        recognized by the first lines of a file. Placeholders and comparisons by a judge are
        returned too: reading them says what they are.
        """
        if not path.is_dir():
            return [path]
        files = [
            file for file in list_files(path) if file.suffix == ".jsonl" and _is_gym_output(file)
        ]
        if not files:
            raise RunError(
                f"There are no rollouts of NeMo Gym in {path}: no .jsonl file has a line with "
                "`response`. Name the output file of the rollout collection."
            )
        return files

    def unread_files(self, path: Path) -> list[Path]:
        if not path.is_dir():
            return []
        rollouts = set(self.find_files(path))
        return [file for file in list_files(path) if file not in rollouts]

    def read_episodes(self, path: Path) -> Iterator[Episode | UnreadableRecord]:
        # A line alone does not tell the fields of the task from those that the verifier added. The
        # inputs of the collection do, if they are next to it.
        stem = path.stem.removesuffix("_failures")
        inputs = path.with_name(f"{stem}_materialized_inputs.jsonl")
        task_fields: set[str] | None = None
        if inputs != path and inputs.is_file():
            task_fields = set()
            for _, line in numbered_lines(inputs):
                try:
                    task_fields.update(from_json(line))
                except (ValueError, TypeError):
                    continue
        return read_jsonl(path, lambda line: iter([_parse_gym_rollout(line, task_fields)]))


def _is_gym_output(file: Path) -> bool:
    for number, line in islice(numbered_lines(file), _PEEK_LINES):
        if number == 1 and describe_placeholder(line) is not None:
            return True
        try:
            fields = from_json(line)
        except ValueError:
            continue
        return isinstance(fields, dict) and (_is_rollout(fields) or _is_comparison(fields))
    return False


def _is_rollout(line: JsonObject) -> bool:
    return any(name in line for name in ("response", "output", "_ng_failure_class"))


def _is_comparison(line: JsonObject) -> bool:
    prompt = as_object(line.get("responses_create_params")).get("input")
    items = prompt if isinstance(prompt, list) else []
    roles = {str(as_object(item).get("role")) for item in items}
    return any(roles.issuperset(pair) or line.keys() >= set(pair) for pair in _COMPARED)


def _parse_gym_rollout(line: JsonObject, task_fields: set[str] | None) -> Episode:
    """Parse a line. Without `task_fields`, all fields not known to be others are the task's."""
    params = require_object(line.get("responses_create_params") or {}, "responses_create_params")
    if _is_comparison(line):
        raise FormatError("a judge's comparison of two responses, not a rollout")
    if not _is_rollout(line):
        raise FormatError("it has no `response`, so it is not a rollout")
    response = line.get("response") or line.get("_ng_failure_partial_response")
    if response is None:
        response = {"output": line.get("output")}
    response = require_object(response, "response")
    agent_ref = line.get("agent_ref")
    name = agent_ref.get("name") if isinstance(agent_ref, dict) else agent_ref
    task = {
        key: value
        for key, value in line.items()
        if key == TASK_INDEX_KEY
        or (
            is_task_field(key)
            and (not is_gym_reward_field(key, value) if task_fields is None else key in task_fields)
        )
    }
    agent = {key: value for key, value in params.items() if key not in _PROMPT_FIELDS}
    agent["max_tokens"] = agent.pop("max_output_tokens", None)
    agent["model"] = response.get("model") or params.get("model") or None
    agent["agent_ref"] = agent_ref
    stop_reason, done = parse_stop(line, response)
    episode = build_episode(
        environment=str(name or line.get("task_source") or "nemo_gym"),
        messages=_parse_conversation(params, response),
        tools=parse_tools(params.get("tools") or response.get("tools")),
        reward=parse_reward(line),
        task=task,
        group=_group_key(line, params, response),
        agent={key: value for key, value in agent.items() if value is not None},
        rewards=parse_reward_components(line),
        done=done,
        stop_reason=stop_reason,
        error=parse_fault(line, response),
        usage=parse_response_usage(response.get("usage")),
    )
    return restore_fields(episode, line.get(EXTRA_KEY))


def is_task_field(name: str) -> bool:
    """Whether a line can have a field of the task under this name."""
    return name not in _RESERVED_FIELDS and not name.startswith(("_ng_", "ng_"))


def _parse_conversation(params: JsonObject, response: JsonObject) -> tuple[Message, ...]:
    prompt = parse_items(params.get("input"), "input")
    output = response.get("output")
    if output is None and isinstance(response.get("output_text"), str):
        output = [{"role": "assistant", "content": response["output_text"]}]
    # Some environments store the first observation separately.
    prompt += parse_items(response.get("seed_obs"), "seed_obs")
    parts = [prompt, *iter_new_items(prompt, output)]
    messages = [message for part in parts for message in to_chat_messages(part)]
    if params.get("instructions"):
        messages.insert(0, {"role": "system", "content": params["instructions"]})
    return parse_messages(messages)


def _group_key(line: JsonObject, params: JsonObject, response: JsonObject) -> Any:
    """Return what attempts at the same task have in common.

    The index of the task alone is not enough, because data sets share indices. The request alone is
    not enough either, because some environments write the prompt at reset.
    """
    request = {name: params[name] for name in _REQUEST_FIELDS if params.get(name)}
    if isinstance(request.get("metadata"), dict):  # It has the seed of each repetition.
        request["metadata"] = {k: v for k, v in request["metadata"].items() if k != "extra_body"}
    prompt = parse_items(params.get("input"), "input")
    task_ids: JsonObject = {}
    if not any(item.get("role") == "user" for item in prompt):
        task_ids = {name: line[name] for name in _TASK_ID_FIELDS if name in line}
        task_ids["group_id"] = response.get("group_id")
    return [line.get(TASK_INDEX_KEY), request, task_ids]


_REASON_FIELDS = (
    "_ng_failure_message",
    "_ng_failure_judge_error",
    "failure_reason",
    "error_message",
    "infrastructure_error",
    "error",
)
_MODEL_STAGES = ("agent", "model")


def parse_reward(line: JsonObject) -> float | None:
    """Return the reward; None if Gym masks the attempt out of scores and training."""
    reward = parse_number(line.get("reward"), "reward")
    return None if _is_masked(line) else reward


def parse_reward_components(line: JsonObject) -> dict[str, float]:
    """Return the `reward_components`, and numbers whose name ends with `_reward`."""
    named = {key: value for key, value in line.items() if is_gym_reward_field(key, value)}
    parts = {**named, **require_object(line.get("reward_components") or {}, "reward_components")}
    rewards = {key: parse_number(value, key) for key, value in parts.items()}
    return {key: value for key, value in rewards.items() if value is not None}


def is_gym_reward_field(name: str, value: Any) -> bool:
    """Whether a field of a NeMo Gym rollout is a part of its reward."""
    return name.endswith("_reward") and isinstance(value, int | float)


def parse_fault(line: JsonObject, response: JsonObject) -> Fault | None:
    """Return the fault that ended the rollout, if there is one.

    A line with an error and a reward other than 0 was scored nevertheless; one with an error and a
    reward of 0 probably was not.
    """
    failure_class = line.get("_ng_failure_class")
    reason = next((line[name] for name in _REASON_FIELDS if line.get(name)), None)
    stage = line.get("_ng_failure_stage", line.get("error_stage"))
    by_model = stage in _MODEL_STAGES
    if failure_class:
        return build_fault(failure_class, reason or failure_class, by_model=by_model)
    error = response.get("error")
    if error or response.get("status") in ("failed", "cancelled"):
        code = error.get("code") if isinstance(error, dict) else None
        message = error.get("message") if isinstance(error, dict) else error
        status = response.get("status") or "failed"
        return build_fault(code or status, message or reason or status, by_model=True)
    kind = line.get("failure_kind") or line.get("error_class")
    if _is_masked(line) and (kind or reason):
        return build_fault(kind or "masked", reason or kind, by_model=by_model)
    exception = line.get("exception_type")
    unscored = line.get("error") or line.get("infrastructure_error")
    unscored = unscored or (exception and (line.get("exception_message") or exception))
    if unscored and not line.get("reward"):
        return build_fault(kind or exception or "error", unscored, by_model=by_model)
    return None


def parse_stop(line: JsonObject, response: JsonObject) -> tuple[StopReason, bool]:
    """Return the stop reason, and whether the environment ended the episode."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    output = response.get("output")
    last = as_object(output[-1]) if isinstance(output, list) and output else {}
    parts = last.get("content")
    is_refusal = isinstance(parts, list) and any(
        as_object(part).get("type") == "refusal" for part in parts
    )
    if reason == "content_filter" or is_refusal:
        return StopReason.REFUSED, False
    if reason or response.get("status") == "incomplete":
        return StopReason.MAX_TOKENS, False
    if line.get("finished_naturally") is False or line.get("truncated") is True:
        return StopReason.MAX_TURNS, False
    return StopReason.DONE, True


def _is_masked(line: JsonObject) -> bool:
    """Whether the attempt is masked; some agents write that into `instance_config`."""
    nested = as_object(line.get("instance_config")).get("mask_sample")
    return bool(line.get("mask_sample") or nested)
