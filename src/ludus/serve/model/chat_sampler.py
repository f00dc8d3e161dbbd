"""Samples replies to conversations, and records them: what all routes that take messages share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal

from ludus.data.messages import Message
from ludus.errors import AgentError, TemplateRefused
from ludus.policy.chat.reply_stream import ReplyDelta
from ludus.policy.runtime import PolicyRuntime
from ludus.policy.sampled_conversation import SampledConversation
from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.concurrent_choices import sample_choices
from ludus.serve.model.generator import Generation, Generator, Prompt, SamplingPlan
from ludus.serve.model.message_schema import Conversation
from ludus.serve.model.recorder import Recorder
from ludus.serve.model.request_schema import ChatBody
from ludus.serve.model.session import Session, new_conversation

OnDeltas = Callable[[Sequence[ReplyDelta], Sequence[int], Sequence[float]], None]
"""Takes new pieces of a reply, which may be none, its new ids and their log-probabilities."""


@dataclass(slots=True)
class ChatChoice:
    """One of the replies to a request."""

    index: int
    conversation: SampledConversation
    session: Session | None
    prompt: Prompt = field(default_factory=lambda: Prompt(()))


@dataclass(slots=True)
class ChatCall:
    """A request that has a place in the queue, and whose prompt fits."""

    body: ChatBody
    messages: tuple[Message, ...]
    plan: SamplingPlan
    choices: list[ChatChoice]
    stack: AsyncExitStack
    """Holds its place and its sessions; closed when it is answered."""

    @property
    def session_ids(self) -> list[str]:
        return [choice.session.id for choice in self.choices if choice.session is not None]

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.choices[0].prompt.ids


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
        """Take a place in the queue and render the prompt, or raise what is wrong with it."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._generator.admission.admit(body.n))
            messages = _to_messages(body)
            runtime = self._generator.with_template_kwargs(body.chat_template_kwargs)
            choices = await self._open_choices(body, messages, runtime, session_id, stack)
            for choice in choices:
                ids = await _render_prompt(choice.conversation, messages)
                choice.prompt = Prompt(ids, choice.conversation.images)
            plan = self._generator.plan(body, [choices[0].prompt])
            return ChatCall(body, messages, plan, choices, stack.pop_all())
        raise AssertionError  # The stack swallows no exception.

    async def _open_choices(
        self,
        body: ChatBody,
        messages: tuple[Message, ...],
        runtime: PolicyRuntime,
        session_id: str | None,
        stack: AsyncExitStack,
    ) -> list[ChatChoice]:
        tools = body.offered_tools
        if self._recorder is None:
            return [
                ChatChoice(index, new_conversation(runtime, tools), None) for index in range(body.n)
            ]
        if session_id is not None and body.n > 1:
            raise ApiError("n must be 1 in a session, which is one conversation.", param="n")
        choices = []
        for index in range(body.n):
            session = await stack.enter_async_context(
                self._recorder.use_session(session_id, messages, tools)
            )
            conversation = session.conversation_for(runtime, tools)
            choices.append(ChatChoice(index, conversation, session))
        return choices

    async def tokenize(self, body: Conversation) -> tuple[int, ...]:
        """The ids of the prompt of a chat request with these messages."""
        runtime = self._generator.with_template_kwargs(body.chat_template_kwargs)
        conversation = new_conversation(runtime, body.offered_tools)
        return await _render_prompt(conversation, _to_messages(body))

    async def sample(self, call: ChatCall) -> list[Reply]:
        """Sample all choices."""
        generations = await sample_choices(
            [
                self._generator.generate(choice.prompt, call.plan, index=choice.index)
                for choice in call.choices
            ]
        )
        return [
            self._add_reply(call, choice, generation)
            for choice, generation in zip(call.choices, generations, strict=True)
        ]

    async def stream(self, call: ChatCall, choice: ChatChoice, on_deltas: OnDeltas) -> Reply:
        """Sample one choice; `on_deltas` is called with its pieces as tokens arrive."""
        parser = choice.conversation.stream_reply()

        def on_text(text: str, ids: Sequence[int], logprobs: Sequence[float]) -> None:
            on_deltas(parser.feed(text) if text else (), ids, logprobs)

        generation = await self._generator.generate(
            choice.prompt, call.plan, index=choice.index, on_text=on_text
        )
        on_deltas(parser.finish(), (), ())
        return self._add_reply(call, choice, generation)

    def _add_reply(self, call: ChatCall, choice: ChatChoice, generation: Generation) -> Reply:
        message = choice.conversation.add_reply(generation.completion, generation.text)
        if choice.session is not None:
            choice.session.add_reply(
                call.messages,
                message,
                usage=(len(choice.prompt.ids), len(generation.completion.ids)),
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
