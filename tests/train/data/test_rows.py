"""Parsing of rows into conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ludus.data.training_row import InvalidRow
from ludus.errors import ConfigError
from ludus.train.data.rows import parse_conversations
from train.sample_rows import TOOLS, chat_messages, dpo_row, sft_row, tool_call


def test_the_messages_of_a_prompt_are_counted() -> None:
    messages = chat_messages(1)
    row = {"prompt": messages[:3], "completion": messages[3:]}
    (conversation,) = parse_conversations(row, "sft")
    assert (conversation.messages, conversation.num_prompt_messages) == (messages, 3)


def test_without_a_prompt_it_is_the_common_prefix_of_both_sides() -> None:
    row = dpo_row(1)
    sides = {side: [*row["prompt"], *row[side]] for side in ("chosen", "rejected")}
    conversations = parse_conversations(sides, "dpo")
    assert [side.num_prompt_messages for side in conversations] == [3, 3]
    assert [side.messages for side in conversations] == [sides["chosen"], sides["rejected"]]


def test_arguments_and_tools_may_be_json_text() -> None:
    row = sft_row(1)
    function = row["messages"][1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])
    (conversation,) = parse_conversations({**row, "tools": json.dumps(TOOLS)}, "sft")
    assert conversation.tools == TOOLS
    assert conversation.messages[1]["tool_calls"] == tool_call(11)["tool_calls"]


@pytest.mark.parametrize(
    ("row", "culprit"),
    [
        (b"{", "JSON"),
        (b"[]", "JSON object"),
        ({"text": "x"}, "columns are text"),
        ({"messages": []}, "`messages`"),
        ({"messages": [{"content": "x"}]}, "`role`"),
        ({"prompt": "x", "completion": "y"}, "`prompt`"),
        ({"messages": chat_messages(1), "tools": {"a": 1}}, "`tools`"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "`name`"),
    ],
)
def test_an_invalid_row_names_the_culprit(row: Any, culprit: str) -> None:
    with pytest.raises(InvalidRow, match=culprit):
        parse_conversations(row, "sft")


def test_rows_of_the_other_method_name_its_command() -> None:
    with pytest.raises(ConfigError, match="`ludus train dpo`"):
        parse_conversations(dpo_row(1), "sft")
    with pytest.raises(ConfigError, match="`ludus train sft`"):
        parse_conversations(sft_row(1), "dpo")


@pytest.mark.parametrize("weight", [0.5, 2, -1, "0", True])
def test_a_weight_is_0_or_1(weight: object) -> None:
    messages = chat_messages(1)
    messages[1] = {**messages[1], "weight": weight}
    with pytest.raises(InvalidRow, match="`weight`"):
        parse_conversations({"messages": messages}, "sft")
