"""Episodes out of what TRL's own loop has played: its messages, and how the environment stands.

Pure functions. They say what was trained on, so what TRL had written after an episode's end is in
them too.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ludus.data.episode import Episode, StopReason, Timing, Tokens, task_group_id
from ludus.data.messages import Call, Function, ImagePart, ImageUrl, Message
from ludus.data.tool_schema import JsonObject
from ludus.rollout.loop import EpisodeLimits
from ludus.train.trl_compat.env_session import EpisodeState

ChatMessage = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TRLRollout:
    """One of TRL's rollouts."""

    prompt: Sequence[ChatMessage]
    completion: Sequence[ChatMessage]
    state: EpisodeState
    environment: str
    tools: tuple[JsonObject, ...]
    tokens: Tokens | None = None


def build_episode(
    rollout: TRLRollout,
    *,
    episode_id: str,
    agent: JsonObject,
    limits: EpisodeLimits,
    model_s: float = 0.0,
) -> Episode:
    """The record of it, with the environment's own reward."""
    standing = rollout.state
    replies = [each for each in rollout.completion if each["role"] == "assistant"]
    return Episode(
        episode_id=episode_id,
        stop_reason=stop_reason(rollout, limits),
        reward=standing.reward,
        environment=rollout.environment,
        task=standing.task,
        seed=standing.task.get("seed"),
        group_id=task_group_id(rollout.environment, standing.task),
        agent=agent,
        messages=parse_messages([*rollout.prompt, *rollout.completion]),
        tools=rollout.tools,
        rewards=dict(standing.score.parts) if standing.fault is None else {},
        done=standing.score.done,
        turns=len(replies),
        tool_calls=sum(len(each.get("tool_calls") or ()) for each in replies),
        malformed_calls=standing.score.malformed_calls + _count_unknown_tools(rollout, replies),
        error=standing.fault,
        timing=Timing(
            started_at=standing.started_at,
            ended_at=datetime.now(UTC),
            model_s=round(model_s, 6),
            environment_s=round(standing.environment_s, 6),
        ),
        tokens=rollout.tokens,
    )


def stop_reason(rollout: TRLRollout, limits: EpisodeLimits) -> StopReason:
    """Why it ended, by the loop's names for it."""
    if rollout.state.fault is not None:
        return StopReason.BROKEN
    if rollout.state.score.done:
        return StopReason.DONE
    last = rollout.completion[-1]
    turns = sum(each["role"] == "assistant" for each in rollout.completion)
    if last["role"] == "tool" or last.get("tool_calls"):
        # It would have gone on: TRL counts the environment's tokens too.
        return StopReason.MAX_TURNS if turns > limits.max_turns else StopReason.MAX_TOKENS
    budget, ids = limits.max_episode_tokens, rollout.tokens.ids if rollout.tokens else ()
    after = len(ids) - _first_sampled_index(rollout.tokens)
    cut = budget is not None and after >= budget
    return StopReason.MAX_TOKENS if cut else StopReason.NO_TOOL_CALL


def parse_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """TRL's messages, with names for the calls, so that results can be told apart."""
    made: list[Message] = []
    unanswered: list[str] = []
    for at, each in enumerate(messages):
        calls = _parse_tool_calls(each.get("tool_calls") or (), at)
        if each["role"] == "assistant":
            unanswered = [call.id for call in calls]
        answered = unanswered.pop(0) if each["role"] == "tool" and unanswered else None
        made.append(
            Message(
                role=each["role"],
                content=_parse_content(each.get("content") or ""),
                reasoning_content=each.get("reasoning_content") or each.get("thinking"),
                tool_calls=calls or None,
                tool_call_id=answered,
                name=each.get("name"),
            )
        )
    return tuple(made)


def build_tokens(
    prompt: Sequence[int], completion: Sequence[int], mask: Sequence[int] | None
) -> Tokens:
    """All ids; TRL does not tell how likely the sampled ones were."""
    own = [1] * len(completion) if mask is None else list(mask)
    ids = (*prompt, *completion)
    return Tokens.model_validate(
        {"ids": ids, "logprobs": (None,) * len(ids), "mask": (*[0] * len(prompt), *own)}
    )


def _first_sampled_index(tokens: Tokens | None) -> int:
    """Where the model began to speak."""
    return tokens.mask.index(1) if tokens is not None and 1 in tokens.mask else 0


def _count_unknown_tools(rollout: TRLRollout, replies: Sequence[ChatMessage]) -> int:
    """Calls of tools that are not there, which TRL answers itself."""
    known = {tool["function"]["name"] for tool in rollout.tools}
    calls = [call for reply in replies for call in reply.get("tool_calls") or ()]
    return sum(call["function"]["name"] not in known for call in calls)


def _parse_tool_calls(calls: Sequence[ChatMessage], at: int) -> tuple[Call, ...]:
    return tuple(
        Call(id=f"call_{at}_{number}", function=_parse_function(call["function"]))
        for number, call in enumerate(calls)
    )


def _parse_function(made: ChatMessage) -> Function:
    arguments = made.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return Function(name=str(made["name"]), arguments=arguments)


def _parse_content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [_parse_part(part) for part in content]


def _parse_part(part: ChatMessage) -> Any:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    data = io.BytesIO()
    part["image"].save(data, format="PNG")
    code = base64.b64encode(data.getvalue()).decode("ascii")
    return ImagePart(image_url=ImageUrl(url=f"data:image/png;base64,{code}"))
