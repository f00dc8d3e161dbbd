"""`/v1/chat/completions`: a reply to messages, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import AgentError, TemplateRefused
from ludus.policy.runtime import PolicyRuntime
from ludus.policy.sampled_conversation import SampledConversation
from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.concurrent_choices import PutChunk, sample_choices, stream_choices
from ludus.serve.model.generator import Generation, Generator, Prompt, SamplingPlan
from ludus.serve.model.recorder import Recorder
from ludus.serve.model.reply_formats import (
    chat_logprobs,
    delta_to_json,
    envelope,
    message_to_json,
    usage,
)
from ludus.serve.model.request_schema import ChatBody, Conversation
from ludus.serve.model.session import Session, new_conversation


@dataclass(slots=True)
class _Choice:
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
    choices: list[_Choice]
    stack: AsyncExitStack
    """Holds its place and its sessions; closed when it is answered."""

    @property
    def session_ids(self) -> list[str]:
        return [choice.session.id for choice in self.choices if choice.session is not None]

    def usage(self, generations: Sequence[Generation]) -> JsonObject:
        completion_tokens = sum(len(each.completion.ids) for each in generations)
        return usage(len(self.choices[0].prompt.ids), completion_tokens)


class ChatCompletions:
    """Answers chat requests; with a recorder, each conversation becomes an episode."""

    def __init__(self, generator: Generator, model: str, recorder: Recorder | None) -> None:
        self._generator, self._model, self._recorder = generator, model, recorder
        self._tokenizer = generator.runtime.policy.tokenizer

    async def open(self, body: ChatBody, session_id: str | None) -> ChatCall:
        """Take a place in the queue and render the prompt, or raise what is wrong with it."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._generator.admit(body.n))
            messages = to_messages(body)
            runtime = self._generator.with_template_kwargs(body.chat_template_kwargs)
            choices = await self._open_choices(body, messages, runtime, session_id, stack)
            for choice in choices:
                ids = await render_prompt(choice.conversation, messages)
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
    ) -> list[_Choice]:
        tools = body.offered_tools
        if self._recorder is None:
            return [
                _Choice(index, new_conversation(runtime, tools), None) for index in range(body.n)
            ]
        if session_id is not None and body.n > 1:
            raise ApiError("n must be 1 in a session, which is one conversation.", param="n")
        choices = []
        for index in range(body.n):
            session = await stack.enter_async_context(
                self._recorder.use_session(session_id, messages, tools)
            )
            conversation = session.conversation_for(runtime, tools)
            choices.append(_Choice(index, conversation, session))
        return choices

    async def complete(self, call: ChatCall) -> JsonObject:
        """Sample all choices, and return the response."""
        generations = await sample_choices(
            [
                self._generator.generate(choice.prompt, call.plan, index=choice.index)
                for choice in call.choices
            ]
        )
        response = envelope("chat.completion", "chatcmpl", self._model)
        response["choices"] = [
            self._choice_to_json(call, choice, generation)
            for choice, generation in zip(call.choices, generations, strict=True)
        ]
        response["usage"] = call.usage(generations)
        if call.body.return_token_ids:
            response["prompt_token_ids"] = list(call.choices[0].prompt.ids)
        return response

    def _choice_to_json(
        self, call: ChatCall, choice: _Choice, generation: Generation
    ) -> JsonObject:
        message = self._add_reply(call, choice, generation)
        body, completion = call.body, generation.completion
        fields: JsonObject = {
            "index": choice.index,
            "message": message_to_json(message),
            "logprobs": None,
            "finish_reason": finish_reason(message, generation),
        }
        if body.logprobs:
            fields["logprobs"] = {
                "content": self._logprobs(body, completion.ids, completion.logprobs)
            }
        if body.return_token_ids:
            fields["token_ids"] = list(completion.ids)
        return fields

    def _add_reply(self, call: ChatCall, choice: _Choice, generation: Generation) -> Message:
        message = choice.conversation.add_reply(generation.completion, generation.text)
        if choice.session is not None:
            choice.session.add_reply(
                call.messages,
                message,
                usage=(len(choice.prompt.ids), len(generation.completion.ids)),
                truncated=generation.finish_reason == "length",
                sampling=call.plan.sampling,
            )
        return message

    def _logprobs(
        self, body: ChatBody, ids: Sequence[int], logprobs: Sequence[float]
    ) -> list[JsonObject]:
        as_ids = body.return_tokens_as_token_ids
        return chat_logprobs(self._tokenizer, ids, logprobs, as_ids=as_ids)

    def stream(self, call: ChatCall) -> AsyncGenerator[bytes, None]:
        """Sample all choices, and yield server-sent events as tokens arrive."""
        return stream_choices(
            [partial(self._stream_choice, call, choice) for choice in call.choices],
            head=envelope("chat.completion.chunk", "chatcmpl", self._model),
            usage=call.usage if call.body.stream_options.include_usage else None,
        )

    async def _stream_choice(
        self, call: ChatCall, choice: _Choice, put_chunk: PutChunk
    ) -> Generation:
        """Sample one choice, and put its chunks as tokens arrive."""
        body = call.body
        reply = choice.conversation.stream_reply()
        waiting: tuple[list[int], list[float]] = ([], [])
        """Tokens whose log-probabilities are sent with the next chunk."""
        num_calls = 0

        def put(delta: JsonObject, finish: str | None = None) -> None:
            chunk: JsonObject = {
                "index": choice.index,
                "delta": delta,
                "logprobs": None,
                "finish_reason": finish,
            }
            if body.logprobs and waiting[0]:
                chunk["logprobs"] = {"content": self._logprobs(body, *waiting)}
            if body.return_token_ids:
                chunk["token_ids"] = list(waiting[0])
            waiting[0].clear()
            waiting[1].clear()
            put_chunk(chunk)

        def on_text(text: str, ids: Sequence[int], logprobs: Sequence[float]) -> None:
            nonlocal num_calls
            waiting[0].extend(ids)
            waiting[1].extend(logprobs)
            for delta in reply.feed(text) if text else ():
                put(delta_to_json(delta, num_calls))
                num_calls += delta.call is not None

        put({"role": "assistant", "content": ""})
        generation = await self._generator.generate(
            choice.prompt, call.plan, index=choice.index, on_text=on_text
        )
        for delta in reply.finish():
            put(delta_to_json(delta, num_calls))
            num_calls += delta.call is not None
        message = self._add_reply(call, choice, generation)
        put({}, finish_reason(message, generation))
        return generation


def to_messages(body: Conversation) -> tuple[Message, ...]:
    try:
        return body.to_messages()
    except ValueError as error:
        raise ApiError(str(error), param="messages") from error


async def render_prompt(
    conversation: SampledConversation, messages: Sequence[Message]
) -> tuple[int, ...]:
    """The ids of the prompt; raises for messages that the chat template or model cannot take."""
    try:
        return await conversation.set_prompt(messages)
    except (TemplateRefused, AgentError) as error:
        raise ApiError(str(error), param="messages") from error


def finish_reason(message: Message, generation: Generation) -> str:
    is_call = generation.finish_reason == "stop" and message.tool_calls
    return "tool_calls" if is_call else generation.finish_reason
