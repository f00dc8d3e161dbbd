"""Convert episodes to rollouts of NeMo Gym, and tasks to inputs of its rollout collection.

Gym uses items of OpenAI's Responses API. Its rewards are always numbers: an unscored attempt is
marked with `mask_sample`, which excludes it from scores and training there as well.
"""

from __future__ import annotations

from collections import Counter

from ludus.curation.importers.base import EXTRA_KEY, extra_fields
from ludus.curation.importers.nemo_gym_importer import (
    ROLLOUT_INDEX_KEY,
    TASK_INDEX_KEY,
    is_task_field,
)
from ludus.curation.importers.responses_api import build_items, flatten_tool
from ludus.data.episode import Episode, StopReason
from ludus.data.files import stable_hash
from ludus.data.messages import messages_before_reply
from ludus.data.tool_schema import JsonObject, parse_arguments

# Fields that Gym accepts in a request; it rejects all others.
_SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_logprobs", "reasoning", "truncation", "service_tier"),
    *("background", "include", "store", "user", "previous_response_id"),
)
_REQUEST_FIELDS = (
    "tool_choice",
    "parallel_tool_calls",
    "max_tool_calls",
    "text",
    "prompt",
    "metadata",
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
            own = episode.task.get(TASK_INDEX_KEY)
            number = own if isinstance(own, int) and own not in self._attempts else self._next
            while number in self._attempts:
                number += 1
                self._next = number
            self._tasks[group] = number
        number = self._tasks[group]
        attempt = self._attempts[number]
        self._attempts[number] += 1
        return {TASK_INDEX_KEY: number, ROLLOUT_INDEX_KEY: attempt}


def build_rollout(episode: Episode, numbers: RolloutNumbers | None = None) -> JsonObject:
    """Build a line of a rollout file; `numbers` are those of the file.

    `output` is the whole conversation as chat messages, which scripts that convert rollouts for TRL
    read; `response.output` has the replies as items.
    """
    task, agent = _task_fields(episode), episode.agent
    indices = (numbers or RolloutNumbers()).add(episode)
    is_complete = task == episode.task and task.get(TASK_INDEX_KEY) == indices[TASK_INDEX_KEY]
    known = ("task",) if is_complete else ()
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
        EXTRA_KEY: extra_fields(episode, known=known),
    }


def build_input(episode: Episode, numbers: RolloutNumbers | None = None) -> JsonObject:
    """Build a line of an input file: the task without the attempt and its sampling settings.

    The fields of the task are next to the request, where Gym's verifiers expect them. `numbers` are
    those of the file, by which Gym finds the rollouts of a task. Without an agent of Gym the line
    has none, because Gym would prefer it to the `agent_name` of a collection.
    """
    request = _build_request(episode)
    if isinstance(request.get("metadata"), dict):  # It has the seed of the attempt.
        metadata = {k: v for k, v in request["metadata"].items() if k != "extra_body"}
        request["metadata"] = metadata or None
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
    return {k: v for k, v in episode.task.items() if k == TASK_INDEX_KEY or is_task_field(k)}


def _agent_ref(episode: Episode) -> JsonObject:
    known = episode.agent.get("agent_ref")
    return {} if known is None else {"agent_ref": known}
