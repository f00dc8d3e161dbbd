"""Samples replies to conversations, and records them: what all routes that take messages share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal

from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import AgentError, LudusError, TemplateRefused
from ludus.policy.chat.reply_parser import ReplyDelta
from ludus.policy.sampled_conversation import SampledConversation
from ludus.serve.model.api_errors import ApiError, to_api_error
from ludus.serve.model.generator import Generation, Generator, OnText, SamplingPlan
from ludus.serve.model.recorder import RecordedSession, Recorder, new_conversation
from ludus.serve.model.requests import ChatBody, Conversation

OnDeltas = Callable[[Sequence[ReplyDelta], Sequence[int], Sequence[float]], None]
"""Takes new pieces of a reply, which may be none, its new ids and their log-probabilities."""


@dataclass(slots=True)
class ChatChoice:
    """One of the replies to a request."""

    index: int
    conversation: SampledConversation
    session: RecordedSession | None
    prompt_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class ChatCall:
    """A request that has a place in the queue, and whose prompt fits."""

    body: ChatBody
    messages: tuple[Message, ...]
    plan: SamplingPlan
    choices: list[ChatChoice]
    stack: AsyncExitStack
    """Holds its place and its sessions; closed when it is answered."""

    head: JsonObject = field(default_factory=dict)
    """What the response of this call begins with."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.choices[0].prompt_ids


@dataclass(frozen=True, slots=True)
class Reply:
    """The parsed message of a generation."""

    message: Message
    generation: Generation

    @property
    def finish_reason(self) -> Literal["stop", "length", "tool_calls"]:
        reason = self.generation.finish_reason
        return "tool_calls" if reason == "stop" and self.message.tool_calls else reason


class ChatSampler:
    """Samples replies; with a recorder, each conversation becomes an episode."""

    def __init__(self, generator: Generator, recorder: Recorder | None) -> None:
        self._generator, self._recorder = generator, recorder
        self.tokenizer = generator.runtime.policy.tokenizer

    async def open(self, body: ChatBody, session_id: str | None) -> ChatCall:
        """Take a place in the queue and render the prompt; raises if it is invalid."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._generator.admit(body.n))
            messages, tools = _to_messages(body), body.offered_tools
            runtime = self._generator.with_template_kwargs(body.chat_template_kwargs)
            if self._recorder is not None and session_id is not None and body.n > 1:
                raise ApiError("n must be 1 in a session, which is one conversation.", param="n")
            choices = []
            for index in range(body.n):
                if self._recorder is None:
                    session, conversation = None, new_conversation(runtime, tools)
                else:
                    session = await stack.enter_async_context(
                        self._recorder.use_session(session_id, messages, tools)
                    )
                    conversation = session.conversation_for(runtime, tools)
                choices.append(ChatChoice(index, conversation, session))
            for choice in choices:
                choice.prompt_ids = await _render_prompt(choice.conversation, messages)
            plan = self._generator.plan(body, choices[0].prompt_ids)
            return ChatCall(body, messages, plan, choices, stack.pop_all())
        raise AssertionError  # The stack swallows no exception.

    async def tokenize(self, body: Conversation) -> tuple[int, ...]:
        """The ids of the prompt of a chat request with these messages."""
        runtime = self._generator.with_template_kwargs(body.chat_template_kwargs)
        conversation = new_conversation(runtime, body.offered_tools)
        return await _render_prompt(conversation, _to_messages(body))

    async def sample(self, call: ChatCall) -> list[Reply]:
        """Sample all choices."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._generate(call, choice)) for choice in call.choices]
        except* (LudusError, ApiError) as errors:
            raise to_api_error(errors.exceptions[0]) from None
        return [
            self._add_reply(call, choice, task.result())
            for choice, task in zip(call.choices, tasks, strict=True)
        ]

    async def stream(self, call: ChatCall, choice: ChatChoice, on_deltas: OnDeltas) -> Reply:
        """Sample one choice; `on_deltas` is called with its pieces as tokens arrive."""
        parser = choice.conversation.stream_reply()

        def on_text(text: str, ids: Sequence[int], logprobs: Sequence[float]) -> None:
            on_deltas(parser.feed(text) if text else (), ids, logprobs)

        generation = await self._generate(call, choice, on_text)
        on_deltas(parser.finish(), (), ())
        return self._add_reply(call, choice, generation)

    async def _generate(
        self, call: ChatCall, choice: ChatChoice, on_text: OnText | None = None
    ) -> Generation:
        return await self._generator.generate(
            choice.prompt_ids,
            call.plan,
            index=choice.index,
            images=choice.conversation.images,
            on_text=on_text,
        )

    def _add_reply(self, call: ChatCall, choice: ChatChoice, generation: Generation) -> Reply:
        message = choice.conversation.add_reply(generation.completion, generation.text)
        if choice.session is not None:
            choice.session.add_reply(
                call.messages,
                message,
                usage=(len(choice.prompt_ids), len(generation.completion.ids)),
                truncated=generation.finish_reason == "length",
                sampling=call.plan.sampling,
            )
        return Reply(message, generation)


def _to_messages(body: Conversation) -> tuple[Message, ...]:
    try:
        return body.to_messages()
    except ValueError as error:
        raise ApiError(str(error), param="messages") from error


async def _render_prompt(
    conversation: SampledConversation, messages: Sequence[Message]
) -> tuple[int, ...]:
    """The ids of the prompt; raises for messages that the chat template or model cannot take."""
    try:
        return await conversation.set_prompt(messages)
    except (TemplateRefused, AgentError) as error:
        raise ApiError(str(error), param="messages") from error
