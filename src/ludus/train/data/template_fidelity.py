"""Whether the chat template keeps everything that rows say.

Tool calls and their arguments must be among the tokens with loss, tools and tool results among all
tokens. A chat format is checked on a generic conversation elsewhere; rows have names and values
that no generic conversation has, so some of them are checked here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, TemplateRefused
from ludus.policy.chat.rendering import (
    Conversation,
    RenderedConversation,
    render_many,
    render_text,
)
from ludus.policy.vision.row_images import ContentPartError, separate_row_images
from ludus.train.data.loading import Split
from ludus.train.data.row_schema import InvalidRow, parse_conversations
from ludus.train.data.tokenization import RowTokenizer

SAMPLE_ROWS = 64
_REASONING_FIELD = "reasoning_content"


def check_template_fidelity(split: Split, row_tokenizer: RowTokenizer) -> None:
    """Raise for the first of some rows of which the chat template loses something."""
    tokenizer, template = row_tokenizer.tokenizer, row_tokenizer.template
    rows = (row for batch in split.batches(SAMPLE_ROWS) for row in batch)
    for number, row in islice(rows, SAMPLE_ROWS):
        try:
            conversations = [
                separate_row_images(each, row_tokenizer.vision).conversation
                for each in parse_conversations(row, row_tokenizer.method)
            ]
        except (InvalidRow, ContentPartError) as error:
            raise ConfigError(f"{split.location(number)} {error}.") from error
        rendered = render_many(tokenizer, conversations, template)
        for conversation, result in zip(conversations, rendered, strict=True):
            if isinstance(result, RenderedConversation) and (
                lost := lost_content(conversation, result)
            ):
                raise ConfigError(
                    f"{split.location(number)}: the chat template drops {lost}, so it would not be "
                    "learned. Use a model whose template supports tools."
                )
            if has_unprompted_reasoning(conversation, tokenizer, template):
                raise ConfigError(
                    f"{split.location(number)}: an assistant message has reasoning_content, and "
                    "the chat template turns thinking off, so the model would never be prompted "
                    "for it. Leave reasoning out when curating, or turn thinking on "
                    "(`thinking`, or enable_thinking in `chat_template_kwargs`)."
                )


def lost_content(conversation: Conversation, rendered: RenderedConversation) -> str | None:
    """What of a conversation is missing from its rendered form, if anything."""
    with_loss = "".join(span.text for span in rendered.text_spans() if span.has_loss)
    messages = conversation.messages[conversation.num_prompt_messages :]
    for tool in conversation.tools or ():
        if (name := tool.get("function", tool).get("name", "")) not in rendered.text:
            return f"the tool {name}"
    replies = [each for each in messages if each["role"] == "assistant"]
    for call in _iter_called_functions([each for each in replies if each.get("weight") != 0]):
        if call["name"] not in with_loss:
            return f"the call of {call['name']}"
        for name, value in call["arguments"].items():
            if not all(_is_kept(leaf, with_loss) for leaf in _iter_argument_leaves(value)):
                return f"{name} of the call of {call['name']}"
    for message in messages:
        content = message.get("content")
        is_result = message["role"] == "tool" and isinstance(content, str)
        if is_result and not _is_kept(content, rendered.text):
            return "a tool result"
    return None


def has_unprompted_reasoning(conversation: Conversation, tokenizer: Any, template: str) -> bool:
    """Whether a reply has reasoning where its generation prompt has closed the reasoning block.

    The generation prompt must be a prefix of what is trained on.
    """
    tools = conversation.tools

    def extends_prompt(messages: list[Any], reply: Mapping[str, Any]) -> bool:
        prompt = render_text(tokenizer, messages, tools, template, add_generation_prompt=True)
        return render_text(tokenizer, [*messages, reply], tools, template).startswith(prompt)

    for index, message in enumerate(conversation.messages):
        if message["role"] != "assistant" or not message.get(_REASONING_FIELD) or not index:
            continue
        before = list(conversation.messages[:index])
        without = {key: value for key, value in message.items() if key != _REASONING_FIELD}
        try:
            if not extends_prompt(before, message) and extends_prompt(before, without):
                return True
        except TemplateRefused:
            continue
    return False


def _iter_called_functions(messages: Sequence[Any]) -> Iterator[JsonObject]:
    """The functions that are called in the messages, which the template must keep."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            yield call.get("function") or call


def _iter_argument_leaves(value: Any) -> Iterator[Any]:
    """The values in an argument of a tool call, which the template must keep."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _iter_argument_leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iter_argument_leaves(item)
    elif value is not None:
        yield value


def _is_kept(value: Any, text: str) -> bool:
    """Whether a chat template wrote a value into the text, as Python or as JSON writes it."""
    return str(value).strip() in text or any(
        json.dumps(value, ensure_ascii=flag).strip('"') in text for flag in (False, True)
    )
