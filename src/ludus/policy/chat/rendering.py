"""Render conversations with a chat template: token ids and the loss mask.

The loss is on the assistant's tokens, if the template marks them (`{% generation %}`), except of
messages with a `weight` of 0, as in OpenAI's format of fine-tuning data. Only the template
has control tokens: what looks like one in a message is tokenized as text. Otherwise, ids and mask
are as in TRL's SFTTrainer with `assistant_only_loss`, but are computed many times faster: all
texts are tokenized in one call, and repeated pieces only once.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import AgentError, TemplateRefused
from ludus.policy.chat.encoding import (
    ContentGuard,
    Messages,
    Tools,
    content_guard,
    encode_with_cache,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MessageLike = Message | JsonObject
Spans = Sequence[tuple[int, int]]
"""Ranges of characters that the template marks as the assistant's."""

GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""Templates that have it mark the assistant's tokens."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools to render."""

    messages: Messages
    tools: Tools = None
    num_prompt_messages: int = 0
    """How many leading messages are the prompt, which has no loss."""
    add_generation_prompt: bool = False
    """Whether to end with the start of an assistant turn."""


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """A conversation as tokens, with its loss mask."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    """1 for tokens with loss."""
    text: str
    starts: tuple[int, ...]
    """The offset in the text where each token begins."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The ranges [start, end) of tokens with loss."""
        groups = groupby(range(len(self.ids)), self.mask.__getitem__)
        ranges = [list(indices) for has_loss, indices in groups if has_loss]
        return [(indices[0], indices[-1] + 1) for indices in ranges]

    def truncate(self, max_length: int | None) -> RenderedConversation:
        """Return the first `max_length` tokens."""
        if max_length is None or len(self.ids) <= max_length:
            return self
        text = self.text[: self.starts[max_length]]
        head = slice(max_length)
        return RenderedConversation(self.ids[head], self.mask[head], text, self.starts[head])

    def text_spans(self, special: frozenset[int] = frozenset()) -> Iterator[TextSpan]:
        """Split the whole text at every change of the loss mask or of `special` tokens."""
        kinds = [(bool(m), i in special) for i, m in zip(self.ids, self.mask, strict=True)]
        groups = [(kind, next(run)) for kind, run in groupby(range(len(kinds)), kinds.__getitem__)]
        starts = [self.starts[first] for _, first in groups]
        for (kind, _), start, end in zip(
            groups, [0, *starts[1:]], [*starts[1:], len(self.text)], strict=True
        ):
            yield TextSpan(self.text[start:end], *kind)


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A piece of the text whose tokens are all of one kind."""

    text: str
    has_loss: bool
    special: bool
    """Whether these are special tokens, such as the start or end of a turn."""


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    tools: Tools,
    template: str | None,
    *,
    num_prompt_messages: int = 0,
    add_generation_prompt: bool = False,
) -> RenderedConversation:
    """Render one conversation; see `render_many`."""
    conversation = Conversation(messages, tools, num_prompt_messages, add_generation_prompt)
    (rendered,) = render_many(tokenizer, [conversation], template)
    if isinstance(rendered, TemplateRefused):
        raise rendered
    return rendered


def render_many(
    tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Conversation], template: str | None
) -> list[RenderedConversation | TemplateRefused]:
    """Render conversations as TRL's SFTTrainer does; an error in place of each failed one.

    The default template is the tokenizer's own. Without `{% generation %}` no token has loss.
    """
    results: list[tuple[_Text, Spans, _Text] | TemplateRefused] = []
    for conversation in conversations:
        try:
            results.append(_render_texts(tokenizer, conversation, template))
        except TemplateRefused as error:
            results.append(error)
    texts = [text for each in results if isinstance(each, tuple) for text in (each[0], each[2])]
    unmarked = iter(
        encode_with_cache(tokenizer, [each.text for each in texts if each.guard is None])
    )
    encodings = (
        next(unmarked) if each.guard is None else each.guard.encode(each.text) for each in texts
    )
    rendered: list[RenderedConversation | TemplateRefused] = []
    for each in results:
        if isinstance(each, TemplateRefused):
            rendered.append(each)
            continue
        text, spans, _ = each
        encoding, prompt = next(encodings), next(encodings)
        ids, ends, mask = encoding.ids, encoding.ends, [0] * len(encoding.ids)
        for start, end in spans:
            # As in transformers: from the first character's token to the last character's.
            first, last = bisect_right(ends, start), bisect_right(ends, end - 1)
            if first == len(mask):
                break
            mask[first : last + 1] = [1] * (min(last + 1, len(mask)) - first)
        prompt_length = rendered_prompt_length(prompt.ids, ids)
        mask[:prompt_length] = [0] * prompt_length
        starts = tuple(encoding.starts)
        rendered.append(RenderedConversation(tuple(ids), tuple(mask), text.unmarked, starts))
    return rendered


def render_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    tools: Tools,
    template: str | None,
    *,
    add_generation_prompt: bool = False,
) -> str:
    """Render a conversation as text."""
    text, _ = _apply_template(
        tokenizer, messages, tools, template, add_generation_prompt=add_generation_prompt
    )
    return text.unmarked


def to_template_message(message: MessageLike) -> JsonObject:
    """Convert a message for rendering: content as a string, call arguments as an object."""
    converted = message.model_dump() if isinstance(message, Message) else dict(message)
    content = converted.get("content")
    if content is not None and not isinstance(content, str):
        if any(part["type"] != "text" for part in content):
            # For a vision model, `VisionProcessor` has replaced images by placeholders before.
            raise AgentError(
                "The environment shows an image, and this model reads only text. Use a vision "
                "model, or an environment without images."
            )
        # Many templates silently drop content that is not a string.
        converted["content"] = "\n".join(part["text"] for part in content)
    if converted.get("tool_calls"):
        converted["tool_calls"] = calls = list(converted["tool_calls"])
        for index, call in enumerate(calls):
            function = call["function"]
            # What is not a JSON object stays as it is.
            with suppress(TypeError, ValueError, RecursionError):
                if isinstance(arguments := json.loads(function["arguments"]), dict):
                    calls[index] = {**call, "function": {**function, "arguments": arguments}}
    return converted


def rendered_prompt_length(prompt_ids: Sequence[object], ids: Sequence[object]) -> int:
    """Count the ids, or characters, of a rendered prompt that the conversation begins with."""
    pairs = enumerate(zip(prompt_ids, ids, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(prompt_ids), len(ids)))


@dataclass(frozen=True, slots=True)
class _Text:
    """A rendered text. Control tokens that are the content of messages are marked."""

    text: str
    guard: ContentGuard | None = None
    """If there are marks."""

    @property
    def unmarked(self) -> str:
        return self.text if self.guard is None else self.guard.unmark(self.text)


def _render_texts(
    tokenizer: PreTrainedTokenizerBase, conversation: Conversation, template: str | None
) -> tuple[_Text, Spans, _Text]:
    """Render a conversation, the spans with loss in it, and its prompt, which may be empty."""
    messages, tools = conversation.messages, conversation.tools
    text, spans = _apply_template(
        tokenizer,
        messages,
        tools,
        template,
        add_generation_prompt=conversation.add_generation_prompt,
    )
    prompt = _Text("")
    if conversation.num_prompt_messages:
        prompt, _ = _apply_template(
            tokenizer,
            messages[: conversation.num_prompt_messages],
            tools,
            template,
            add_generation_prompt=True,
        )
    weights = [each.get("weight") for each in messages if each["role"] == "assistant"]
    if 0 in weights and spans:
        if len(weights) != len(spans):
            raise TemplateRefused(
                f"the template marks {len(spans)} replies of {len(weights)}, so that a `weight` of "
                "0 cannot be told from the others"
            )
        spans = [span for span, weight in zip(spans, weights, strict=True) if weight != 0]
    return text, spans, prompt


def _apply_template(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    tools: Tools,
    template: str | None,
    *,
    add_generation_prompt: bool = False,
) -> tuple[_Text, Spans]:
    """Return the rendered text and the character ranges of the assistant.

    A template is foreign code that may raise anything; all of it becomes `TemplateRefused`.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        if not messages:
            raise ValueError("there is no message in it")
        source = tokenizer.get_chat_template(template, tools)
        guard = content_guard(tokenizer, source)
        messages, tools, control_tokens = guard.mark(messages, tools)
        texts, spans = render_jinja_template(
            [list(messages)], tools=None if tools is None else list(tools), chat_template=source,
            return_assistant_tokens_mask=GENERATION_TAG.search(source) is not None,
            add_generation_prompt=add_generation_prompt, **tokenizer.special_tokens_map,
        )  # fmt: skip
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TemplateRefused(f"the template refuses it: {reason}") from error
    return _Text(texts[0], guard if control_tokens else None), spans[0] if spans else ()
