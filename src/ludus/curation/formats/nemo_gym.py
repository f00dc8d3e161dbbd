"""Rollouts of NVIDIA's NeMo Gym, read and written, and inputs of its rollout collection.

A line is an attempt: the request (`responses_create_params`), the reply (`response`), the reward,
and next to them the fields of the task and of the verifier. Gym's rewards are always numbers, also
if the infrastructure failed: the failure is in other fields, which differ between agents, and
`mask_sample` excludes an attempt from scores and training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pydantic_core import from_json

from ludus.curation.formats.base import (
    EXTRA_KEY,
    FormatError,
    UnreadableRecord,
    as_object,
    build_episode,
    build_fault,
    extra_fields,
    parse_score,
    read_jsonl,
    require_object,
    restore_fields,
)
from ludus.curation.formats.chat_messages import parse_messages, parse_tools
from ludus.curation.formats.responses_api import (
    build_items,
    flatten_tool,
    parse_items,
    to_chat_messages,
)
from ludus.data.episode import Episode, EpisodeFault, StopReason, Usage
from ludus.data.files import stable_hash
from ludus.data.json_files import numbered_lines
from ludus.data.messages import messages_before_reply
from ludus.data.tool_schema import JsonObject, parse_arguments

_TASK_INDEX, _ROLLOUT_INDEX = "_ng_task_index", "_ng_rollout_index"
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
_TASK_REQUEST_FIELDS = ("input", "instructions", "tools", "tool_choice", "text", "prompt")
_PROMPT_FIELDS = frozenset({"input", "tools", "instructions", "model"})
_TASK_ID_FIELDS = (
    *("task_idx", "task_index", "task_id", "id", "uuid", "instance_id", "verifier_metadata"),
)
_FAILURE_MESSAGE_FIELDS = (
    *("_ng_failure_message", "_ng_failure_judge_error", "failure_reason", "error_message"),
    *("infrastructure_error", "error"),
)
_PEEK_LINES = 10


def read_gym(path: Path) -> Iterator[Episode | UnreadableRecord]:
    # A line alone does not tell the task's fields from the verifier's. The inputs of the collection
    # do, if they are next to it.
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
    return read_jsonl(path, lambda line: iter([_parse_rollout(line, task_fields)]))


def is_gym_output(file: Path) -> bool:
    """Whether a file has rollouts or failures: NeMo Gym writes inputs and metrics beside them."""
    for _, line in islice(numbered_lines(file), _PEEK_LINES):
        try:
            fields = from_json(line)
        except ValueError:
            continue
        return isinstance(fields, dict) and _is_rollout(fields)
    return False


def _is_rollout(line: JsonObject) -> bool:
    return any(name in line for name in ("response", "output", "_ng_failure_class"))


def _parse_rollout(line: JsonObject, task_fields: set[str] | None) -> Episode:
    """Parse a line. Without `task_fields`, all fields not listed as others are the task's."""
    params = require_object(line.get("responses_create_params") or {}, "responses_create_params")
    if not _is_rollout(line):
        raise FormatError("it has no `response`, so it is not a rollout")
    response = line.get("response") or line.get("_ng_failure_partial_response")
    response = require_object(response or {"output": line.get("output")}, "response")
    agent_ref = line.get("agent_ref")
    name = agent_ref.get("name") if isinstance(agent_ref, dict) else agent_ref
    components = {key: value for key, value in line.items() if _is_reward_field(key, value)}
    components |= require_object(line.get("reward_components") or {}, "reward_components")
    rewards = {key: parse_score(value, key) for key, value in components.items()}
    task = {
        key: value
        for key, value in line.items()
        if key == _TASK_INDEX
        or (
            _is_task_field(key)
            and (not _is_reward_field(key, value) if task_fields is None else key in task_fields)
        )
    }
    agent = {key: value for key, value in params.items() if key not in _PROMPT_FIELDS}
    agent["max_tokens"] = agent.pop("max_output_tokens", None)
    agent["model"] = response.get("model") or params.get("model") or None
    agent["agent_ref"] = agent_ref
    reward = parse_score(line.get("reward"), "reward")
    # Some environments store the first observation separately.
    prompt = parse_items(params.get("input"), "input")
    prompt += parse_items(response.get("seed_obs"), "seed_obs")
    output = response.get("output")
    if not isinstance(output, list) or not any(isinstance(part, list) for part in output):
        output = [output]
    parts = [parse_items(part, "output") for part in output]
    # Each transition is the whole conversation so far, as the model was shown it.
    parts = parts[-1:] if response.get("contains_transitions") else [prompt, *parts]
    messages = [message for part in parts for message in to_chat_messages(part)]
    if params.get("instructions"):
        messages.insert(0, {"role": "system", "content": params["instructions"]})
    usage = as_object(response.get("usage"))
    stop_reason = _parse_stop_reason(line, response)
    episode = build_episode(
        environment=str(name or line.get("task_source") or "nemo_gym"),
        messages=parse_messages(messages),
        tools=parse_tools(params.get("tools") or response.get("tools")),
        reward=None if _is_masked(line) else reward,
        task=task,
        group=_group_key(line, params, response),
        agent={key: value for key, value in agent.items() if value is not None},
        rewards={key: value for key, value in rewards.items() if value is not None},
        done=stop_reason is StopReason.DONE,
        stop_reason=stop_reason,
        error=_parse_fault(line, response),
        usage=Usage(
            prompt_tokens=usage.get("input_tokens") or 0,
            completion_tokens=usage.get("output_tokens") or 0,
            cached_tokens=as_object(usage.get("input_tokens_details")).get("cached_tokens") or 0,
            reasoning_tokens=as_object(usage.get("output_tokens_details")).get("reasoning_tokens")
            or 0,
        ),
    )
    return restore_fields(episode, line.get(EXTRA_KEY))


def _is_task_field(name: str) -> bool:
    """Whether a line can have a field of the task under this name."""
    return name not in _RESERVED_FIELDS and not name.startswith(("_ng_", "ng_"))


def _is_reward_field(name: str, value: object) -> bool:
    return name.endswith("_reward") and isinstance(value, int | float)


def _is_masked(line: JsonObject) -> bool:
    """Whether the attempt is masked; some agents write that into `instance_config`."""
    nested = as_object(line.get("instance_config")).get("mask_sample")
    return bool(line.get("mask_sample") or nested)


def _group_key(line: JsonObject, params: JsonObject, response: JsonObject) -> list[object]:
    """Return what attempts at the same task have in common.

    The index of the task alone is not enough, because data sets share indices. The request alone is
    not enough either, because some environments write the prompt at reset.
    """
    request = {name: params[name] for name in _TASK_REQUEST_FIELDS if params.get(name)}
    request |= _task_metadata(params)
    prompt = parse_items(params.get("input"), "input")
    task_ids: JsonObject = {}
    if not any(item.get("role") == "user" for item in prompt):
        task_ids = {name: line[name] for name in _TASK_ID_FIELDS if name in line}
        task_ids["group_id"] = response.get("group_id")
    return [line.get(_TASK_INDEX), request, task_ids]


def _task_metadata(request: JsonObject) -> JsonObject:
    """Return the `metadata` of a request without the seed of the attempt; empty if that was all."""
    metadata = request.get("metadata")
    if isinstance(metadata, dict):
        metadata = {key: value for key, value in metadata.items() if key != "extra_body"}
    return {"metadata": metadata} if metadata else {}


def _parse_fault(line: JsonObject, response: JsonObject) -> EpisodeFault | None:
    """Return the fault that ended the rollout, if there is one.

    A line with an error and a reward other than 0 was scored nevertheless; one with an error and a
    reward of 0 probably was not.
    """
    failure_class = line.get("_ng_failure_class")
    reason = next((line[name] for name in _FAILURE_MESSAGE_FIELDS if line.get(name)), None)
    by_model = line.get("_ng_failure_stage", line.get("error_stage")) in ("agent", "model")
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


def _parse_stop_reason(line: JsonObject, response: JsonObject) -> StopReason:
    reason = as_object(response.get("incomplete_details")).get("reason")
    output = response.get("output")
    last = as_object(output[-1]) if isinstance(output, list) and output else {}
    parts = last.get("content")
    is_refusal = isinstance(parts, list) and any(
        as_object(part).get("type") == "refusal" for part in parts
    )
    if reason == "content_filter" or is_refusal:
        return StopReason.REFUSED
    if reason or response.get("status") == "incomplete":
        return StopReason.MAX_TOKENS
    if line.get("finished_naturally") is False or line.get("truncated") is True:
        return StopReason.MAX_TURNS
    return StopReason.DONE


# Fields that Gym accepts in a request; it rejects all others.
_SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_logprobs", "reasoning", "truncation", "service_tier"),
    *("background", "include", "store", "user", "previous_response_id"),
)
_REQUEST_FIELDS = (
    *("tool_choice", "parallel_tool_calls", "max_tool_calls", "text", "prompt", "metadata"),
)


class RolloutNumbers:
    """Numbers the tasks of a file, and the attempts at each, as Gym's reward profile groups them.

    A task keeps the number that it has in Gym, unless another task has it already.
    """

    def __init__(self) -> None:
        self._tasks: dict[int, int] = {}
        """By the hash of the `group_id`."""
        self._attempts = Counter[int]()
        """By the number of the task."""
        self._next = 0

    def add(self, episode: Episode) -> JsonObject:
        group = stable_hash(episode.group_id)
        if group not in self._tasks:
            own = episode.task.get(_TASK_INDEX)
            number = own if isinstance(own, int) and own not in self._attempts else self._next
            while number in self._attempts:
                number += 1
                self._next = number
            self._tasks[group] = number
        number = self._tasks[group]
        attempt = self._attempts[number]
        self._attempts[number] += 1
        return {_TASK_INDEX: number, _ROLLOUT_INDEX: attempt}


def build_gym_rollout(episode: Episode, numbers: RolloutNumbers | None = None) -> JsonObject:
    """Build a line of NeMo Gym's rollout file; `numbers` counts over the file.

    `output` is the whole conversation as chat messages, which scripts that convert rollouts for TRL
    read; `response.output` has the replies as items.
    """
    task, agent = _task_fields(episode), episode.agent
    indices = (numbers or RolloutNumbers()).add(episode)
    is_complete = task == episode.task and task.get(_TASK_INDEX) == indices[_TASK_INDEX]
    # Chat templates expect arguments to be objects. Malformed ones become an empty object;
    # `response.output` has the original text.
    messages: list[JsonObject] = [message.model_dump(mode="json") for message in episode.messages]
    for message in messages:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = parse_arguments(call["function"]["arguments"]) or {}
    outcome: JsonObject = {"reward": 0.0 if episode.reward is None else episode.reward}
    if episode.rewards:
        outcome["reward_components"] = episode.rewards
    if episode.reward is None:
        outcome["mask_sample"] = True
    if episode.error is not None:
        outcome |= {"failure_kind": episode.error.kind, "failure_reason": episode.error.message}
    return {
        "responses_create_params": {
            **_build_request(episode),
            **{name: agent[name] for name in _SAMPLING_FIELDS if name in agent},
            "model": agent.get("model"),
            "max_output_tokens": agent.get("max_tokens"),
        },
        "response": _build_response(episode),
        "output": messages,
        **outcome,
        **task,
        **indices,
        # Gym's profile is one of agents.
        "agent_ref": {"type": "responses_api_agents", "name": episode.environment},
        **_agent_ref(episode),
        EXTRA_KEY: extra_fields(episode, stored=("task",) if is_complete else ()),
    }


def build_gym_input(episode: Episode, numbers: RolloutNumbers | None = None) -> JsonObject:
    """Build a line of NeMo Gym's input file: a task without the attempt and sampling settings.

    The fields of the task are next to the request, as Gym's verifiers expect them. By `numbers`,
    which counts over the file, Gym finds the rollouts of a task. Without an agent of Gym the line
    has none, because Gym would prefer it to the `agent_name` of a collection.
    """
    request = _build_request(episode)
    request = {**request, "metadata": None, **_task_metadata(request)}
    return {
        "responses_create_params": {k: v for k, v in request.items() if v is not None},
        **_task_fields(episode),
        **(numbers or RolloutNumbers()).add(episode),
        **_agent_ref(episode),
    }


def _build_request(episode: Episode) -> JsonObject:
    fields = {name: episode.agent[name] for name in _REQUEST_FIELDS if name in episode.agent}
    prompt = messages_before_reply(episode.messages)
    tools = [flatten_tool(tool) for tool in episode.tools]
    return {"input": list(build_items(prompt)), "tools": tools, **fields}


def _build_response(episode: Episode) -> JsonObject:
    prompt = messages_before_reply(episode.messages)
    started_at = episode.timing and episode.timing.started_at
    usage = episode.usage
    incomplete = {StopReason.MAX_TOKENS: "max_output_tokens", StopReason.REFUSED: "content_filter"}
    reason = None if episode.broken else incomplete.get(episode.stop_reason)
    return {
        "id": episode.episode_id,
        "created_at": started_at.timestamp() if started_at else 0.0,
        "model": episode.agent.get("model") or "",
        "object": "response",
        "output": list(build_items(episode.messages[len(prompt) :])),
        "parallel_tool_calls": episode.agent.get("parallel_tool_calls", True),
        "tool_choice": episode.agent.get("tool_choice", "auto"),
        "tools": [flatten_tool(tool) for tool in episode.tools],
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        }
        if usage.total_tokens
        else None,
        "status": "failed" if episode.broken else "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
    }


def _task_fields(episode: Episode) -> JsonObject:
    """Return the fields of the task whose names do not collide with Gym's."""
    return {k: v for k, v in episode.task.items() if k == _TASK_INDEX or _is_task_field(k)}


def _agent_ref(episode: Episode) -> JsonObject:
    agent_ref = episode.agent.get("agent_ref")
    return {} if agent_ref is None else {"agent_ref": agent_ref}
