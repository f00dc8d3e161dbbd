"""Chat templates that drop tools, calls, arguments or results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import CHATML, student

from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import find_chat_format
from ludus.train.data.rows import check_template_fidelity
from ludus.train.data.tokenization import RowTokenizer
from ludus.train.data.training_data import JsonlRows
from train.sample_rows import TOOLS, chat_messages, write_jsonl

CONTENT = "{{ message.content }}"
NAMES_ONLY = CHATML.replace(
    CONTENT,
    CONTENT + "{% for call in message.tool_calls %}{{ call.function.name }}{% endfor %}",
)
NO_RESULTS = CHATML.replace(
    CONTENT, "{% if message.role != 'tool' %}" + CONTENT + "{{ message.tool_calls }}{% endif %}"
)


@pytest.mark.parametrize(
    ("row", "template", "lost"),
    [
        ({"messages": chat_messages(1, turns=1), "tools": TOOLS}, CHATML, "1 of 1 pieces of tools"),
        ({"messages": chat_messages(1)}, CHATML, "2 of 2 pieces of tool calls"),
        ({"messages": chat_messages(1)}, NAMES_ONLY, "1 of 2 pieces of tool calls"),
        ({"messages": chat_messages(1)}, NO_RESULTS, "1 of 1 pieces of tool results"),
    ],
)
def test_a_template_that_drops_content_raises_with_the_location(
    tmp_path: Path, row: Any, template: str, lost: str
) -> None:
    split = JsonlRows(
        write_jsonl(tmp_path / "rows.jsonl", [{"messages": chat_messages(1)[:1]}, row])
    )
    tokenizer = student()
    good = find_chat_format(tokenizer).template
    check_template_fidelity(split, RowTokenizer(tokenizer, good, "sft"))
    with pytest.raises(ConfigError, match=rf"rows\.jsonl:2: .* {lost}"):
        check_template_fidelity(split, RowTokenizer(tokenizer, template, "sft"))
