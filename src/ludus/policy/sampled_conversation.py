"""The tokens of a conversation whose replies a local model samples.

The ids are append-only: sampled ids are never decoded and tokenized again, and each message is
tokenized once. So the recorded ids and log-probabilities are exactly what the model saw and
sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from ludus.data.episode import Tokens
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject, parse_arguments
from ludus.policy.chat.incremental_prompt import continuation_ids
from ludus.policy.chat.reply_parser import ReplyStream
from ludus.policy.engine.batcher import Completion
from ludus.policy.runtime import MAX_CHARS_ON_LOOP, PolicyRuntime
from ludus.policy.vision.processor import ProcessedImage, process_images


class SampledConversation:
    """All token ids of a conversation so far, and which of them the model sampled.

    `set_prompt` and `add_reply` take turns. A prompt whose reply never came, because the request
    was cancelled, is dropped by the next one.

    Args:
        source: Where the messages come from, for error messages.
        parse_calls: Whether replies may have tool calls; otherwise these are text.
    """

    def __init__(
        self,
        runtime: PolicyRuntime,
        tools: Sequence[JsonObject],
        *,
        source: str,
        parse_calls: bool = True,
    ) -> None:
        self._runtime = runtime
        self._parser = runtime.reply_parser if parse_calls else runtime.text_parser
        self._tools = tools
        self._num_tool_chars = sum(len(str(tool)) for tool in tools)
        self._source = source
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._mask: list[Literal[0, 1]] = []
        self.images: list[ProcessedImage] = []
        """All images so far, in the order of their placeholders among the ids."""
        self._messages: tuple[Message, ...] = ()
        """The messages before the last reply."""
        self._last_reply: Message | None = None
        self._reply_stopped = True
        self._length_at_reply = self._images_at_reply = 0
        self._prompt_messages: tuple[Message, ...] = ()
        self._last_input_ids: Sequence[int] = ()
        """The prompt ids between the last reply and the next one."""

    @property
    def tokens(self) -> Tokens:
        return Tokens(ids=tuple(self._ids), logprobs=tuple(self._logprobs), mask=tuple(self._mask))

    async def set_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Append the messages since the last reply, and return the ids of the whole prompt.

        If `messages` do not continue this conversation, because others have replied since or the
        history was edited, all tokens are forgotten: the whole conversation is a new prompt.
        """
        policy = self._runtime.policy
        self._truncate(self._length_at_reply, self._images_at_reply)
        new = self._new_messages(messages)
        if new is None:
            self._truncate(0, 0)
            new = messages
        images = await process_images(policy, self._source, new)
        shown = new
        if policy.vision is not None:
            shown = [policy.vision.message_to_text(message) for message in new]
        num_chars = self._num_tool_chars + sum(map(_num_chars, shown))
        if num_chars > MAX_CHARS_ON_LOOP:
            ids = await asyncio.to_thread(self._render, shown)
        else:
            ids = self._render(shown)
        if policy.vision is not None:
            ids = policy.vision.expand_placeholders(ids, images)
        self.images += images
        self._prompt_messages, self._last_input_ids = tuple(messages), ids
        self._append(ids, [None] * len(ids), 0)
        return tuple(self._ids)

    def stream_reply(self) -> ReplyStream:
        """Return a parser of the reply to the prompt, for its text as it is sampled."""
        return ReplyStream(self._parser, self._last_input_ids, self._tools, self._call_id_prefix)

    def add_reply(self, completion: Completion, text: str | None = None) -> Message:
        """Append the sampled reply to the prompt, and parse it.

        `text` is the reply's text if it is shorter than the ids: it ends at a stop sequence.
        """
        inputs, prefix = self._last_input_ids, self._call_id_prefix
        self._append(completion.ids, completion.logprobs, 1)
        self._last_reply = (
            self._parser(inputs, completion.ids, self._tools, call_id_prefix=prefix)
            if text is None
            else self._parser.parse_text(inputs, text, self._tools, call_id_prefix=prefix)
        )
        self._reply_stopped = completion.stopped
        self._messages = self._prompt_messages
        self._length_at_reply, self._images_at_reply = len(self._ids), len(self.images)
        return self._last_reply

    @property
    def _call_id_prefix(self) -> str:
        """Differs from turn to turn, because prompts grow."""
        return f"call_{len(self._ids)}"

    def _new_messages(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the last reply and what follows it; None if the messages do not continue it."""
        if self._last_reply is None:
            return None
        known = len(self._messages)
        new = messages[known:]
        if not new or tuple(messages[:known]) != self._messages:
            return None
        replies = [message for message in new if message.role == "assistant"]
        if not replies:
            return new
        is_own = len(replies) == 1 and is_same_reply(new[0], self._last_reply)
        return new if is_own else None

    def _render(self, new: Sequence[Message]) -> Sequence[int]:
        """Tokenize the first prompt, or in later turns what follows the model's last reply."""
        if not self._ids:
            return self._runtime.initial_prompt_ids(new, self._tools)
        policy = self._runtime.policy
        reply = new[0] if new[0].role == "assistant" else None
        return continuation_ids(
            policy.tokenizer,
            policy.chat_format,
            new[0 if reply is None else 1 :],
            self._tools,
            turn_ended=self._reply_stopped,
            reply=reply,
        )

    def _append(
        self, ids: Sequence[int], logprobs: Sequence[float | None], sampled: Literal[0, 1]
    ) -> None:
        self._ids += ids
        self._logprobs += logprobs
        self._mask += [sampled] * len(ids)

    def _truncate(self, length: int, num_images: int) -> None:
        del self._ids[length:], self._logprobs[length:], self._mask[length:]
        del self.images[num_images:]
        self._length_at_reply, self._images_at_reply = length, num_images
        if not length:
            self._last_reply = None


def is_same_reply(message: Message, reply: Message) -> bool:
    """Whether a message is this sampled reply, as a client sends it back.

    Clients may leave out the reasoning, or write the arguments of a call as other JSON.
    """
    if message is reply:
        return True
    return (
        message.role == "assistant"
        and message.text.strip() == reply.text.strip()
        and message.reasoning_content in (None, "", reply.reasoning_content)
        and _calls_key(message) == _calls_key(reply)
    )


def _calls_key(message: Message) -> list[tuple[str, JsonObject | str]]:
    keys: list[tuple[str, JsonObject | str]] = []
    for call in message.tool_calls or ():
        text = call.function.arguments
        arguments = parse_arguments(text)
        keys.append((call.function.name, text if arguments is None else arguments))
    return keys


def _num_chars(message: Message) -> int:
    """The approximate number of characters of a message that are tokenized."""
    arguments = (call.function.arguments for call in message.tool_calls or ())
    return len(message.text) + len(message.reasoning_content or "") + sum(map(len, arguments))
