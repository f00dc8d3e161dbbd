"""Build an episode from the fields of another format; counts are computed from the messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from ludus.curation.importers.base import as_number
from ludus.data.episode import Episode, Fault, StopReason, Timing, Usage, task_group_id
from ludus.data.messages import Message, messages_before_reply
from ludus.data.tool_arguments import parse_arguments
from ludus.data.tool_schema import JsonObject


def build_episode(
    *,
    environment: str,
    messages: tuple[Message, ...],
    tools: tuple[JsonObject, ...] = (),
    reward: float | None,
    task: JsonObject | None = None,
    group: Any = None,
    group_id: str | None = None,
    episode_id: str = "",
    seed: int | None = None,
    agent: JsonObject | None = None,
    rewards: dict[str, float] | None = None,
    done: bool = True,
    stop_reason: StopReason | None = None,
    error: Fault | None = None,
    usage: Usage | None = None,
    timing: Timing | None = None,
) -> Episode:
    """Build an episode.

    `group_id` is taken as it is. Without it, attempts with the same `group`, else the same `task`,
    else the same prompt form a group. An attempt with an `error` is broken, and therefore unscored.
    """
    broken = error is not None
    default_stop_reason = StopReason.DONE if done else StopReason.NO_TOOL_CALL
    identity = group if group is not None else task or prompt_group_key(messages)
    calls = [call for message in messages for call in message.tool_calls or ()]
    return Episode(
        episode_id=episode_id,
        stop_reason=StopReason.BROKEN if broken else stop_reason or default_stop_reason,
        reward=None if broken else reward,
        usage=usage or Usage(),
        environment=environment,
        task=task or {},
        seed=seed,
        group_id=group_id or task_group_id(environment, {"task": identity}),
        agent=agent or {},
        messages=messages,
        tools=tools,
        rewards=rewards or {},
        done=done and not broken,
        turns=sum(message.role == "assistant" for message in messages),
        tool_calls=len(calls),
        malformed_calls=sum(parse_arguments(call.function.arguments) is None for call in calls),
        error=error,
        timing=timing,
    )


def build_fault(kind: Any, message: Any, *, by_model: bool) -> Fault:
    """Build the fault of an episode: an error of the model's provider, or of the environment."""
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return Fault(kind=str(kind), where="model" if by_model else "environment", message=text)


def build_timing(
    start: Any, end: Any, *, model: Any = None, environment: Any = None
) -> Timing | None:
    """Build the timing of an episode from Unix times; None if they are unknown."""
    start_s, end_s = as_number(start), as_number(end)
    if start_s is None or end_s is None:
        return None
    try:
        started_at = datetime.fromtimestamp(start_s, UTC)
        ended_at = datetime.fromtimestamp(end_s, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return Timing(
        started_at=started_at,
        ended_at=ended_at,
        model_s=as_number(model) or 0.0,
        environment_s=as_number(environment) or 0.0,
    )


def prompt_group_key(messages: tuple[Message, ...]) -> list[JsonObject]:
    """Return the messages before the first reply as JSON: episodes that share them are a group."""
    return [message.model_dump(mode="json") for message in messages_before_reply(messages)]
