"""Whether the chat template keeps the tools, calls and results of rows.

A chat format is checked on a generic conversation elsewhere; rows have names and values that no
generic conversation has, so some of them are checked here.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

from ludus.data.tool_schema import JsonObject
from ludus.data.training_row import InvalidRow
from ludus.errors import ConfigError, TemplateRefused
from ludus.policy.chat.rendering import Conversation, render_text
from ludus.policy.chat.template_loss import find_dropped_pieces
from ludus.policy.vision.training_images import ContentPartError, separate_row_images
from ludus.train.data.loading import Split
from ludus.train.data.row_schema import parse_conversations
from ludus.train.data.tokenization import RowTokenizer

SAMPLE_ROWS = 64
_CHECKED_KINDS = ("tools", "tool-calls", "tool-results")
"""Of `find_dropped_pieces`: many templates drop earlier reasoning on purpose."""
_REASONING_FIELD = "reasoning_content"


def check_template_fidelity(split: Split, row_tokenizer: RowTokenizer) -> None:
    """Raise for the first of some rows of which the chat template loses something."""
    tokenizer, template = row_tokenizer.tokenizer, row_tokenizer.template
    rows = (row for batch in split.batches(SAMPLE_ROWS) for row in batch)
    for number, row in islice(rows, SAMPLE_ROWS):
        try:
            conversations = [
                separate_row_images(each, row_tokenizer.vision)[0]
                for each in parse_conversations(row, row_tokenizer.method)
            ]
        except (InvalidRow, ContentPartError) as error:
            raise ConfigError(f"{split.location(number)} {error}.") from error
        render = partial(render_text, tokenizer, template=template)
        for conversation in conversations:
            pieces = find_dropped_pieces(conversation.messages, conversation.tools, render)
            for kind, message in pieces:
                if kind in _CHECKED_KINDS:
                    raise ConfigError(
                        f"{split.location(number)}: {message}, so they would not be learned. Use "
                        "a model whose template supports tools."
                    )
            if has_unprompted_reasoning(conversation, tokenizer, template):
                raise ConfigError(
                    f"{split.location(number)}: an assistant message has reasoning_content, and "
                    "the chat template turns thinking off, so the model would never be prompted "
                    "for it. Leave reasoning out when curating, or turn thinking on "
                    "(`thinking`, or enable_thinking in `chat_template_kwargs`)."
                )


def has_unprompted_reasoning(conversation: Conversation, tokenizer: Any, template: str) -> bool:
    """Whether a reply has reasoning where its generation prompt has closed the reasoning block.

    The generation prompt must be a prefix of what is trained on.
    """
    tools = conversation.tools

    def extends_prompt(messages: list[Any], reply: JsonObject) -> bool:
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
