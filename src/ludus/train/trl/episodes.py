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
from ludus.data.tools import JsonObject
from ludus.rollout.loop import EpisodeLimits
from ludus.train.trl.seat import Standing

Said = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rolled:
    """One of TRL's rollouts."""

    prompt: Sequence[Said]
    completion: Sequence[Said]
    state: Standing
    environment: str
    tools: tuple[JsonObject, ...]
    tokens: Tokens | None = None


def build_episode(
    rolled: Rolled,
    *,
    episode_id: str,
    agent: JsonObject,
    limits: EpisodeLimits,
    model_s: float = 0.0,
) -> Episode:
    """The record of it, with the environment's own reward."""
    standing = rolled.state
    replies = [each for each in rolled.completion if each["role"] == "assistant"]
    return Episode(
        episode_id=episode_id,
        stop_reason=stop_of(rolled, limits),
        reward=standing.reward,
        environment=rolled.environment,
        task=standing.task,
        seed=standing.task.get("seed"),
        group_id=task_group_id(rolled.environment, standing.task),
        agent=agent,
        messages=parse_messages([*rolled.prompt, *rolled.completion]),
        tools=rolled.tools,
        rewards=dict(standing.score.parts) if standing.fault is None else {},
        done=standing.score.done,
        turns=len(replies),
        tool_calls=sum(len(each.get("tool_calls") or ()) for each in replies),
        malformed_calls=standing.score.malformed_calls + _unknown(rolled, replies),
        error=standing.fault,
        timing=Timing(
            started_at=standing.started_at,
            ended_at=datetime.now(UTC),
            model_s=round(model_s, 6),
            environment_s=round(standing.environment_s, 6),
        ),
        tokens=rolled.tokens,
    )


def stop_of(rolled: Rolled, limits: EpisodeLimits) -> StopReason:
    """Why it ended, by the loop's names for it."""
    if rolled.state.fault is not None:
        return StopReason.BROKEN
    if rolled.state.score.done:
        return StopReason.DONE
    last = rolled.completion[-1]
    turns = sum(each["role"] == "assistant" for each in rolled.completion)
    if last["role"] == "tool" or last.get("tool_calls"):
        # It would have gone on: TRL counts the environment's tokens too.
        return StopReason.MAX_TURNS if turns > limits.max_turns else StopReason.MAX_TOKENS
    budget, ids = limits.max_episode_tokens, rolled.tokens.ids if rolled.tokens else ()
    after = len(ids) - _first(rolled.tokens)
    cut = budget is not None and after >= budget
    return StopReason.MAX_TOKENS if cut else StopReason.NO_TOOL_CALL


def parse_messages(said: Sequence[Said]) -> tuple[Message, ...]:
    """TRL's messages, with names for the calls, so that results can be told apart."""
    made: list[Message] = []
    unanswered: list[str] = []
    for at, each in enumerate(said):
        calls = _calls(each.get("tool_calls") or (), at)
        if each["role"] == "assistant":
            unanswered = [call.id for call in calls]
        answered = unanswered.pop(0) if each["role"] == "tool" and unanswered else None
        made.append(
            Message(
                role=each["role"],
                content=_content(each.get("content") or ""),
                reasoning_content=each.get("reasoning_content") or each.get("thinking"),
                tool_calls=calls or None,
                tool_call_id=answered,
                name=each.get("name"),
            )
        )
    return tuple(made)


def tokens_of(prompt: Sequence[int], reply: Sequence[int], mask: Sequence[int] | None) -> Tokens:
    """All ids; TRL does not tell how likely the sampled ones were."""
    own = [1] * len(reply) if mask is None else list(mask)
    ids = (*prompt, *reply)
    return Tokens.model_validate(
        {"ids": ids, "logprobs": (None,) * len(ids), "mask": (*[0] * len(prompt), *own)}
    )


def _first(tokens: Tokens | None) -> int:
    """Where the model began to speak."""
    return tokens.mask.index(1) if tokens is not None and 1 in tokens.mask else 0


def _unknown(rolled: Rolled, replies: Sequence[Said]) -> int:
    """Calls of tools that are not there, which TRL answers itself."""
    known = {tool["function"]["name"] for tool in rolled.tools}
    calls = [call for reply in replies for call in reply.get("tool_calls") or ()]
    return sum(call["function"]["name"] not in known for call in calls)


def _calls(calls: Sequence[Said], at: int) -> tuple[Call, ...]:
    return tuple(
        Call(id=f"call_{at}_{number}", function=_function(call["function"]))
        for number, call in enumerate(calls)
    )


def _function(made: Said) -> Function:
    arguments = made.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return Function(name=str(made["name"]), arguments=arguments)


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [_parse_part(part) for part in content]


def _parse_part(part: Said) -> Any:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    data = io.BytesIO()
    part["image"].save(data, format="PNG")
    code = base64.b64encode(data.getvalue()).decode("ascii")
    return ImagePart(image_url=ImageUrl(url=f"data:image/png;base64,{code}"))
