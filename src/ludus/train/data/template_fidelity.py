"""Whether the chat template keeps everything that rows say.

Tool calls and their arguments must be among the tokens with loss, tools and tool results among all
tokens. A chat format is checked on a generic conversation elsewhere; rows have names and values
that no generic conversation has, so some of them are checked here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from ludus.errors import ConfigError, TemplateRefused
from ludus.policy.chat.rendering import (
    Conversation,
    RenderedConversation,
    render_many,
    render_text,
)
from ludus.train.data.loading import Split
from ludus.train.data.row_schema import (
    InvalidRow,
    iter_tool_calls,
    parse_conversations,
    separate_images,
)
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
                separate_images(each, row_tokenizer.vision).conversation
                for each in parse_conversations(row, row_tokenizer.method)
            ]
        except InvalidRow as error:
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
    for call in iter_tool_calls([each for each in messages if each["role"] == "assistant"]):
        if call["name"] not in with_loss:
            return f"the call of {call['name']}"
        for name, value in call["arguments"].items():
            leaves = _iter_leaves(value)
            if not all(any(form in with_loss for form in _written_forms(leaf)) for leaf in leaves):
                return f"{name} of the call of {call['name']}"
    for message in messages:
        content = message.get("content")
        is_result = message["role"] == "tool" and isinstance(content, str)
        if is_result and not any(form in rendered.text for form in _written_forms(content)):
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


def _iter_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _iter_leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iter_leaves(item)
    elif value is not None:
        yield value


def _written_forms(value: Any) -> Iterator[str]:
    """How a template may write a value: as Python or as JSON."""
    yield str(value).strip()
    for ensure_ascii in (False, True):
        yield json.dumps(value, ensure_ascii=ensure_ascii).strip('"')
