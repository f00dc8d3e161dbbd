"""Episodes from TRL's own rollouts: its messages, and the state of the environment session.

Pure functions. An episode records what was trained on, including what TRL let the model write
after the end of the episode.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ludus.data.episode import Episode, StopReason, Timing, Tokens, Usage, task_group_id
from ludus.data.messages import Call, Function, ImagePart, ImageUrl, Message
from ludus.data.tool_schema import JsonObject
from ludus.rollout.loop import DEFAULT_MAX_TURNS, EpisodeLimits
from ludus.train.trl_compat.env_session import EpisodeState

ChatMessage = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TRLEpisode:
    """An episode as TRL's loop played it."""

    prompt: Sequence[ChatMessage]
    completion: Sequence[ChatMessage]
    state: EpisodeState
    environment: str
    tools: tuple[JsonObject, ...]
    tokens: Tokens | None = None

    def stop_reason(self, limits: EpisodeLimits) -> StopReason:
        """Return why TRL ended the episode, in the terms of Ludus's loop."""
        if self.state.fault is not None:
            return StopReason.BROKEN
        if self.state.score.done:
            return StopReason.DONE
        last = self.completion[-1]
        turns = sum(message["role"] == "assistant" for message in self.completion)
        if last["role"] == "tool" or last.get("tool_calls"):
            # A limit ended it: TRL's token limit also counts the environment's tokens.
            max_turns = limits.max_turns or DEFAULT_MAX_TURNS
            return StopReason.MAX_TURNS if turns > max_turns else StopReason.MAX_TOKENS
        tokens, budget = self.tokens, limits.max_episode_tokens
        if budget is None:
            return StopReason.NO_TOOL_CALL
        length = 0
        if tokens is not None:
            length = len(tokens.ids) - (tokens.mask.index(1) if 1 in tokens.mask else 0)
        return StopReason.MAX_TOKENS if length >= budget else StopReason.NO_TOOL_CALL


def build_episode(
    trl_episode: TRLEpisode,
    *,
    episode_id: str,
    agent: JsonObject,
    limits: EpisodeLimits,
    model_s: float = 0.0,
) -> Episode:
    """Build the record of an episode of TRL's loop, with the environment's own reward."""
    state = trl_episode.state
    replies = [message for message in trl_episode.completion if message["role"] == "assistant"]
    calls = [call for reply in replies for call in reply.get("tool_calls") or ()]
    tool_names = {tool["function"]["name"] for tool in trl_episode.tools}
    # TRL answers calls of unknown tools itself, so the environment has not counted them.
    unknown_calls = sum(call["function"]["name"] not in tool_names for call in calls)
    return Episode(
        episode_id=episode_id,
        stop_reason=trl_episode.stop_reason(limits),
        reward=state.reward,
        environment=trl_episode.environment,
        task=state.task,
        seed=state.task.get("seed"),
        group_id=task_group_id(trl_episode.environment, state.task),
        agent=agent,
        messages=parse_messages([*trl_episode.prompt, *trl_episode.completion]),
        tools=trl_episode.tools,
        rewards=dict(state.score.parts) if state.fault is None else {},
        done=state.score.done,
        turns=len(replies),
        tool_calls=len(calls),
        malformed_calls=state.score.malformed_calls + unknown_calls,
        error=state.fault,
        timing=Timing(
            started_at=state.started_at,
            ended_at=datetime.now(UTC),
            model_s=round(model_s, 6),
            environment_s=round(state.environment_s, 6),
        ),
        tokens=trl_episode.tokens,
        usage=Usage(completion_tokens=sum(trl_episode.tokens.mask if trl_episode.tokens else ())),
    )


def parse_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Convert TRL's messages, which have no call ids: add ids, and match results by their order."""
    converted: list[Message] = []
    open_calls: list[str] = []
    for position, message in enumerate(messages):
        calls = []
        for number, call in enumerate(message.get("tool_calls") or ()):
            arguments = call["function"].get("arguments", {})
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            function = Function(name=str(call["function"]["name"]), arguments=arguments)
            calls.append(Call(id=f"call_{position}_{number}", function=function))
        if message["role"] == "assistant":
            open_calls = [call.id for call in calls]
        call_id = open_calls.pop(0) if message["role"] == "tool" and open_calls else None
        content: Any = message.get("content") or ""
        if not isinstance(content, str):
            parts: list[Any] = []
            for part in content:
                if part["type"] == "text":
                    parts.append({"type": "text", "text": part["text"]})
                    continue
                buffer = io.BytesIO()
                part["image"].save(buffer, format="PNG")
                data = base64.b64encode(buffer.getvalue()).decode("ascii")
                parts.append(ImagePart(image_url=ImageUrl(url=f"data:image/png;base64,{data}")))
            content = tuple(parts)
        converted.append(
            Message(
                role=message["role"],
                content=content,
                reasoning_content=message.get("reasoning_content") or message.get("thinking"),
                tool_calls=tuple(calls) or None,
                tool_call_id=call_id,
                name=message.get("name"),
            )
        )
    return tuple(converted)


def build_tokens(
    prompt: Sequence[int], completion: Sequence[int], mask: Sequence[int] | None
) -> Tokens:
    """Build the tokens of an episode, without log-probabilities: TRL does not provide them.

    `mask` is 1 for sampled tokens of the completion; None: all of them are.
    """
    completion_mask = [1] * len(completion) if mask is None else list(mask)
    ids = (*prompt, *completion)
    return Tokens.model_validate(
        {
            "ids": ids,
            "logprobs": (None,) * len(ids),
            "mask": (*[0] * len(prompt), *completion_mask),
        }
    )
