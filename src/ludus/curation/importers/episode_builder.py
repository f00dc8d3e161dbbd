"""An episode from what a foreign file says of it, with the rest worked out from its messages."""

from __future__ import annotations

from typing import Any

from ludus.data.episode import Episode, Fault, StopReason, Timing, Usage, task_group_id
from ludus.data.messages import Message, messages_before_reply
from ludus.data.tool_schema import JsonObject, parse_arguments


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
    """Attempts at the same task share a group: by `group`, else by `task`, else by their prompt.
    A file that names its groups itself says so with `group_id`, which is taken as it stands.

    An attempt with an `error` is broken, and then it is unscored, whatever the file says.
    """
    broken = error is not None
    ended = StopReason.DONE if done else StopReason.NO_TOOL_CALL
    calls = [call for message in messages for call in message.tool_calls or ()]
    return Episode(
        episode_id=episode_id,
        stop_reason=StopReason.BROKEN if broken else stop_reason or ended,
        reward=None if broken else reward,
        usage=usage or Usage(),
        environment=environment,
        task=task or {},
        seed=seed,
        group_id=group_id
        or task_group_id(environment, {"task": _group_identity(group, task, messages)}),
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


def prompt_identity(messages: tuple[Message, ...]) -> list[JsonObject]:
    """What the model was asked, as something to know a task by."""
    return [message.model_dump(mode="json") for message in messages_before_reply(messages)]


def _group_identity(group: Any, task: JsonObject | None, messages: tuple[Message, ...]) -> Any:
    if group is not None:
        return group
    if task:
        return task
    return prompt_identity(messages)
