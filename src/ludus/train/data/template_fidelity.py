"""Whether a template keeps what a row says: calls and their arguments among what is learned, tools
and results among what is read.

A dialect is proven on a probe; rows have names and values that no probe has. So some of the rows
themselves are looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from ludus.errors import ConfigError, TemplateRefused
from ludus.policy.chat.rendering import Conversation, RenderedConversation, render_many, render_text
from ludus.policy.vision.processor import VisionProcessor
from ludus.train.config import Method
from ludus.train.data.loading import Split
from ludus.train.data.row_schema import (
    InvalidRow,
    iter_tool_calls,
    parse_conversations,
    separate_images,
)

SAMPLE_ROWS = 64
_REASONING_FIELD = "reasoning_content"


def check_template_fidelity(
    split: Split,
    tokenizer: Any,
    template: str,
    method: Method,
    vision: VisionProcessor | None = None,
) -> None:
    """Raise over the first of some rows of which the template loses something."""
    for number, row in islice(
        (row for some in split.batches(SAMPLE_ROWS) for row in some), SAMPLE_ROWS
    ):
        try:
            talks = [
                separate_images(talk, vision).conversation
                for talk in parse_conversations(row, method)
            ]
        except InvalidRow as error:
            raise ConfigError(f"{split.location(number)} {error}.") from error
        for talk, made in zip(talks, render_many(tokenizer, talks, template), strict=True):
            lost = None if isinstance(made, TemplateRefused) else lost_content(talk, made)
            if lost is not None:
                raise ConfigError(
                    f"{split.location(number)}: the chat template loses {lost}, so that it cannot be "
                    "learned. Use a model whose template knows tools."
                )
            if has_unprompted_reasoning(talk, tokenizer, template):
                raise ConfigError(
                    f"{split.location(number)}: an answer has thoughts (reasoning_content), and the "
                    "chat template asks the model not to think, so the model would never be asked "
                    "for what it learns. Leave them out (ludus curate --no-reasoning), or train "
                    "with --thinking."
                )


def lost_content(conversation: Conversation, rendered: RenderedConversation) -> str | None:
    """What of a conversation is not where it should be; None: all of it is there."""
    learned = "".join(piece.text for piece in rendered.text_spans() if piece.has_loss)
    said = conversation.messages[conversation.num_prompt_messages :]
    for tool in conversation.tools or ():
        if (name := tool.get("function", tool).get("name", "")) not in rendered.text:
            return f"the tool {name}"
    for call in iter_tool_calls([each for each in said if each["role"] == "assistant"]):
        if call["name"] not in learned:
            return f"the call of {call['name']}"
        for name, value in call["arguments"].items():
            if not all(
                any(form in learned for form in _written_forms(leaf))
                for leaf in _iter_leaves(value)
            ):
                return f"{name} of the call of {call['name']}"
    for message in said:
        content = message.get("content")
        is_result = message["role"] == "tool" and isinstance(content, str)
        if is_result and not any(form in rendered.text for form in _written_forms(content)):
            return "what a tool answered"
    return None


def has_unprompted_reasoning(conversation: Conversation, tokenizer: Any, template: str) -> bool:
    """Whether an answer has thoughts where the prompt for it has closed them already.

    The prompt for an answer, as the model is asked, must be how the answer is trained to begin.
    """

    def follows(messages: list[Any], answer: Mapping[str, Any]) -> bool:
        prompt = render_text(
            tokenizer, messages, conversation.tools, template, add_generation_prompt=True
        )
        return render_text(tokenizer, [*messages, answer], conversation.tools, template).startswith(
            prompt
        )

    for at, message in enumerate(conversation.messages):
        if message["role"] != "assistant" or not message.get(_REASONING_FIELD) or not at:
            continue
        before = list(conversation.messages[:at])
        without = {key: value for key, value in message.items() if key != _REASONING_FIELD}
        try:
            if not follows(before, message) and follows(before, without):
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
    """How a template may write a value: as it is, as Python or as JSON."""
    yield str(value).strip()
    for plain in (False, True):
        yield json.dumps(value, ensure_ascii=plain).strip('"')
