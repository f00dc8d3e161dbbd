"""A recorded session: one conversation with the model, and the episode that it becomes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from ludus.data.episode import Episode, StopReason, Timing, Tokens, Usage, task_group_id
from ludus.data.files import stable_hash
from ludus.data.messages import ImagePart, Message, messages_before_reply
from ludus.data.tool_schema import JsonObject, parse_arguments
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.runtime import PolicyRuntime
from ludus.policy.sampled_conversation import SampledConversation
from ludus.serve.model.request_schema import RewardBody

ENVIRONMENT = "api"
"""The name of the environment in recorded episodes."""


class Session:
    """One conversation, and what its episode needs."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.lock = asyncio.Lock()
        """Held by a call: the next one continues after its reply."""
        self.last_used = time.monotonic()
        self.history_key: int | None = None
        """Of all messages so far."""
        self.indexed_key: int | None = None
        """The history key under which the recorder finds it."""
        self._conversation: SampledConversation | None = None
        self._conversation_key: tuple[PolicyRuntime, list[JsonObject]] | None = None
        """The runtime and the tools of the conversation."""
        self._messages: tuple[Message, ...] = ()
        self._tools: tuple[JsonObject, ...] = ()
        self._tokens: Tokens | None = None
        """As of the last reply: a later call that is refused changes the conversation."""
        self._usage = Usage()
        self._truncated = False
        self._sampling: SamplingParams | None = None
        self.started_at = self._ended_at = datetime.now(UTC)

    @property
    def has_reply(self) -> bool:
        return bool(self._messages)

    def conversation_for(
        self, runtime: PolicyRuntime, tools: list[JsonObject]
    ) -> SampledConversation:
        """The conversation's tokens; new ones if its tools or template arguments have changed."""
        if self._conversation is None or self._conversation_key != (runtime, tools):
            self._conversation_key = runtime, tools
            self._conversation = new_conversation(runtime, tools)
        return self._conversation

    def add_reply(
        self,
        messages: tuple[Message, ...],
        reply: Message,
        *,
        usage: tuple[int, int],
        truncated: bool,
        sampling: SamplingParams,
    ) -> None:
        """Keep a reply to these messages; `usage` has its prompt and completion tokens."""
        self._messages = (*messages, reply)
        if self._conversation is not None and self._conversation_key is not None:
            self._tokens = self._conversation.tokens
            self._tools = tuple(self._conversation_key[1])
        self._usage += Usage(prompt_tokens=usage[0], completion_tokens=usage[1])
        self._truncated, self._sampling = truncated, sampling
        self._ended_at = datetime.now(UTC)
        self.history_key = history_key(self._messages, self._tools)

    def to_episode(self, episode_id: str, agent: JsonObject, reward: RewardBody | None) -> Episode:
        calls = [call for message in self._messages for call in message.tool_calls or ()]
        is_scored = reward is not None and reward.reward is not None
        prompt = messages_before_reply(self._messages)
        task = {"task": [message.model_dump(mode="json") for message in prompt]}
        sampling = {} if self._sampling is None else asdict(self._sampling)
        return Episode(
            episode_id=episode_id,
            stop_reason=self._stop_reason(is_scored=is_scored),
            reward=None if reward is None else reward.reward,
            usage=self._usage,
            environment=ENVIRONMENT,
            group_id=task_group_id(ENVIRONMENT, task),
            agent={
                **agent,
                **{name: value for name, value in sampling.items() if value is not None},
                "session": self.id,
            },
            messages=self._messages,
            tools=self._tools,
            rewards={} if reward is None else reward.rewards,
            done=is_scored and not self._truncated,
            turns=sum(message.role == "assistant" for message in self._messages),
            tool_calls=len(calls),
            malformed_calls=sum(parse_arguments(call.function.arguments) is None for call in calls),
            timing=Timing(started_at=self.started_at, ended_at=self._ended_at),
            tokens=self._tokens,
        )

    def _stop_reason(self, *, is_scored: bool) -> StopReason:
        if self._truncated:
            return StopReason.MAX_TOKENS
        if is_scored:
            return StopReason.DONE
        # Without a reward, the client has just made no further call.
        has_call = bool(self._messages[-1].tool_calls)
        return StopReason.MAX_TURNS if has_call else StopReason.NO_TOOL_CALL


def new_conversation(runtime: PolicyRuntime, tools: Sequence[JsonObject]) -> SampledConversation:
    """The tokens of a conversation that begins."""
    # Where no tools are offered, what looks like a call is text.
    return SampledConversation(runtime, tools, source="The request", parse_calls=bool(tools))


def _images_of(message: Message) -> list[ImagePart]:
    parts = () if isinstance(message.content, str) else message.content
    return [part for part in parts if isinstance(part, ImagePart)]


def history_key(messages: Sequence[Message], tools: Sequence[JsonObject]) -> int:
    """Equal for the same conversation, also if a client has left out reasoning or call ids."""
    parts = [
        [
            message.role,
            message.text.strip(),
            [part.image_url.url for part in _images_of(message)],
            [
                [call.function.name, parse_arguments(call.function.arguments)]
                for call in message.tool_calls or ()
            ],
        ]
        for message in messages
    ]
    return stable_hash(json.dumps([parts, list(tools)], sort_keys=True))
