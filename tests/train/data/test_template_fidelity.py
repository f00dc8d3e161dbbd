"""Chat templates that drop tools, calls, arguments or results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import CHATML, student

from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import find_chat_format
from ludus.train.data.loading import JsonlRows
from ludus.train.data.template_fidelity import check_template_fidelity
from ludus.train.data.tokenization import RowTokenizer
from train.sample_rows import chat_messages, sft_row, write_jsonl

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
        (sft_row(1), CHATML, "the tool add"),
        ({"messages": chat_messages(1)}, CHATML, "the call of add"),
        ({"messages": chat_messages(1)}, NAMES_ONLY, "a of the call of add"),
        ({"messages": chat_messages(1)}, NO_RESULTS, "a tool result"),
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
