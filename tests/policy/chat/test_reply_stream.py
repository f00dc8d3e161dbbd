"""A streamed reply adds up to the message that its parser makes of the whole."""

from __future__ import annotations

import pytest
from tiny_tokenizers import of_family

from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.chat.reply_parser import ReplyParser, ReplyStream

TOOLS = [{"type": "function", "function": {"name": "guess", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "guess", "arguments": {"word": "crane"}}\n</tool_call>'
REPLIES = [
    "  The answer is 42.\n\nIndeed.  \n",
    "<think>\nSeven and five.\n</think>\n\nIt is 42.",
    f"<think>\n\n</think>\n\n{CALL}",
    f"I guess.\n{CALL}\nAnd again:\n{CALL}",
    '<tool_call>\n{"name": "guess", "arguments": {"word": }}\n</tool_call>',
    '<tool_call>\n{"name": "guess", "argu',
    "a < b and <tool",
    "<think>never ends",
    "",
]


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_pieces_add_up_to_the_message(reply: str, size: int) -> None:
    tokenizer = of_family("qwen3")
    chat_format = find_chat_format(tokenizer)
    parser = ReplyParser(tokenizer, chat_format.response_template, chat_format.stop_token_ids)
    prompt = tokenizer.encode("<|im_start|>assistant\n")
    message = parser.parse_text(prompt, reply, TOOLS, call_id_prefix="call")
    stream = ReplyStream(parser, prompt, TOOLS, "call")
    deltas = [
        delta
        for start in range(0, len(reply), size)
        for delta in stream.feed(reply[start : start + size])
    ]
    deltas += stream.finish()
    assert "".join(delta.content for delta in deltas) == message.content
    assert "".join(delta.reasoning for delta in deltas) == (message.reasoning_content or "")
    calls = tuple(delta.call for delta in deltas if delta.call is not None)
    assert calls == (message.tool_calls or ())


def test_text_is_streamed_before_the_reply_ends() -> None:
    tokenizer = of_family("qwen3")
    chat_format = find_chat_format(tokenizer)
    parser = ReplyParser(tokenizer, chat_format.response_template, chat_format.stop_token_ids)
    stream = ReplyStream(parser, tokenizer.encode("<|im_start|>assistant\n"), TOOLS, "call")
    assert "".join(delta.content for delta in stream.feed("The answer is 42")) == "The answer is 42"
    assert stream.feed(" <tool") == []
