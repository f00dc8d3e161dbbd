"""Rows as conversations to render, the columns of tokenized rows, and what templates do to rows.

An assistant message with a `weight` of 0 is context without loss, as in OpenAI's format.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from ludus.data.tool_schema import JsonObject, parse_arguments
from ludus.data.training_row import InvalidRow, parse_row_columns, parse_training_row, row_kind
from ludus.errors import ConfigError
from ludus.policy.chat.rendering import Conversation, render_text
from ludus.policy.chat.template_kwargs import THINKING_VARIABLE, split_default_kwargs
from ludus.policy.chat.template_loss import find_dropped_pieces
from ludus.policy.vision.training_images import separate_row_images
from ludus.train.config import Method

if TYPE_CHECKING:
    from ludus.train.data.tokenization import RowTokenizer
    from ludus.train.data.training_data import Split

TOKEN_COLUMNS: dict[Method, tuple[tuple[str, str], ...]] = {
    "sft": (("input_ids", "labels"),),
    "dpo": (("chosen_ids", "chosen_labels"), ("rejected_ids", "rejected_labels")),
}
"""The columns of a tokenized row: tokens and labels of each side."""
IMAGE_COLUMNS: dict[Method, tuple[str, ...]] = {
    "sft": ("row_images",),
    "dpo": ("chosen_images", "rejected_images"),
}
"""The data URLs of each side's images, in tokenized rows for models that take images."""
ROW_COLUMN = "row"
"""The number of a tokenized row in its source."""
IGNORE_INDEX = -100
"""The label of tokens without loss, as in `torch.nn.CrossEntropyLoss`; others are their own."""
_EXPECTED_COLUMNS = {
    "sft": "`messages`, or `prompt` and `completion`",
    "dpo": "`prompt`, `chosen` and `rejected`",
}
_TRAINED_COLUMNS = ("messages", "completion", "chosen", "rejected")
_SAMPLE_ROWS = 64
_CHECKED_KINDS = ("tools", "tool-calls", "tool-results")
"""Kinds of `find_dropped_pieces`, without reasoning, which many templates drop on purpose."""


def parse_conversations(row: bytes | JsonObject, method: Method) -> list[Conversation]:
    """The conversation of an SFT row, or the chosen and the rejected one of a DPO row.

    The arguments of tool calls become objects instead of JSON text, as chat templates expect them.
    """
    columns = parse_row_columns(row)
    kind = row_kind(columns)
    if kind is None:
        names = ", ".join(map(str, columns)) or "none"
        raise InvalidRow(f"has no {_EXPECTED_COLUMNS[method]}; its columns are {names}")
    if kind != method:
        raise ConfigError(
            f"These are rows for {kind.upper()}, with {_EXPECTED_COLUMNS[kind]}. Train on them "
            f"with `ludus train {kind}`."
        )
    parsed = parse_training_row(columns)
    if empty := [name for name in _TRAINED_COLUMNS if columns.get(name) == []]:
        raise InvalidRow(f"has no messages in `{empty[0]}`")
    return [
        Conversation(
            list(map(_prepare_message, side.messages)), parsed.tools or None, side.prompt_length
        )
        for side in parsed.conversations
    ]


def _prepare_message(message: JsonObject) -> JsonObject:
    weight = message.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise InvalidRow(f"has a message with the `weight` {weight!r}, which must be 0 or 1")
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        arguments = function.get("arguments")
        if isinstance(arguments, str) and (arguments := parse_arguments(arguments)) is None:
            raise InvalidRow(f"has a call of {function['name']} whose arguments are no JSON object")
        function = {**function, "arguments": arguments or {}}
        calls.append({**call, "type": "function", "function": function})
    return {**message, "tool_calls": calls} if calls else message


def check_template_fidelity(split: Split, row_tokenizer: RowTokenizer) -> None:
    """Raise if the chat template drops tools, calls or results of a row.

    A chat format is checked on a generic conversation elsewhere; rows have names and values that no
    generic conversation has.
    """
    template = row_tokenizer.template
    render = partial(render_text, row_tokenizer.tokenizer, template=template)
    is_off = split_default_kwargs(template)[0].get(THINKING_VARIABLE) is False
    for number, row in islice(split.rows(), _SAMPLE_ROWS):
        try:
            conversations = [
                separate_row_images(each, row_tokenizer.vision)[0]
                for each in parse_conversations(row, row_tokenizer.method)
            ]
        except InvalidRow as error:
            raise ConfigError(f"{split.location(number)} {error}.") from error
        for conversation in conversations:
            pieces = find_dropped_pieces(conversation.messages, conversation.tools, render)
            for kind, message in pieces:
                if kind in _CHECKED_KINDS:
                    raise ConfigError(
                        f"{split.location(number)}: {message}, so they would not be learned. Use "
                        "a model whose template supports tools."
                    )
            # Otherwise the prompt of a reply would end with a closed, empty reasoning block.
            if is_off and any(each.get("reasoning_content") for each in conversation.messages):
                raise ConfigError(
                    f"{split.location(number)}: an assistant message has reasoning_content, and "
                    "the chat template turns thinking off, so the model would never be prompted "
                    "for it. Leave reasoning out when curating, or turn thinking on "
                    "(`thinking`, or enable_thinking in `chat_template_kwargs`)."
                )
