"""Exactly the assistant's words bear the loss, with tools and over turns, token by token."""

from __future__ import annotations

import pytest
from students import of_family, student
from transformers import PreTrainedTokenizerFast

from ludus.policy.chat.chat_format import ChatFormat, find_chat_format
from ludus.policy.chat.rendering import RenderedConversation, render, render_pair
from policy.conversations import PLAYED, TOOLS, call, calling, said

MESSAGES = PLAYED["messages"]

QWEN3 = [
    "<think>\nVowels first.\n</think>\n\n"
    '<tool_call>\n{"name": "guess", "arguments": {"word": "crane"}}\n</tool_call><|im_end|>\n',
    "<think>\nTwo at once.\n</think>\n\n"
    '<tool_call>\n{"name": "guess", "arguments": {"word": "über"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>\n',
    "<think>\nDone.\n</think>\n\nFound it.<|im_end|>\n",
    "<think>\n\n</think>\n\nGladly.<|im_end|>\n",
]
CHATML = [
    QWEN3[0].removesuffix("\n"),
    QWEN3[1].removesuffix("\n"),
    QWEN3[2].removesuffix("\n"),
    "Gladly.<|im_end|>",
]
LLAMA3 = [
    "<think>\nVowels first.\n</think>\n\n"
    '{"name": "guess", "parameters": {"word": "crane"}}<|eot_id|>',
    "<think>\nTwo at once.\n</think>\n\n"
    '{"name": "guess", "parameters": {"word": "über"}}\n'
    '{"name": "add", "parameters": {"a": 1, "b": 2}}<|eot_id|>',
    "<think>\nDone.\n</think>\n\nFound it.<|eot_id|>",
    "Gladly.<|eot_id|>",
]
WORSE = {
    "qwen3": '<think>\n\n</think>\n\n<tool_call>\n{"name": "guess", "arguments": {"word": "zzz"}}\n'
    "</tool_call><|im_end|>\n",
    "chatml": '<tool_call>\n{"name": "guess", "arguments": {"word": "zzz"}}\n'
    "</tool_call><|im_end|>",
    "llama3": '{"name": "guess", "parameters": {"word": "zzz"}}<|eot_id|>',
}
SPEAKERS = [
    pytest.param(of_family("qwen3"), "qwen3", QWEN3, id="qwen3"),
    pytest.param(student(), "chatml", CHATML, id="chatml"),
    pytest.param(of_family("llama3_1"), "llama3", LLAMA3, id="llama3"),
]


def trained(tokenizer: PreTrainedTokenizerFast, made: RenderedConversation) -> list[str]:
    """What the tokens that bear the loss say, stretch by stretch."""
    return [tokenizer.decode(made.ids[begin:end]) for begin, end in made.spans]


def spelled(tokenizer: PreTrainedTokenizerFast, words: list[str]) -> list[int]:
    return [
        token for each in words for token in tokenizer(each, add_special_tokens=False).input_ids
    ]


def bearing(made: RenderedConversation) -> list[int]:
    return [token for token, bears in zip(made.ids, made.mask, strict=True) if bears]


def dialect(tokenizer: PreTrainedTokenizerFast, name: str) -> ChatFormat:
    found = find_chat_format(tokenizer)
    assert found.name == name
    return found


@pytest.mark.parametrize(("tokenizer", "name", "words"), SPEAKERS)
def test_rows_of_sft(tokenizer: PreTrainedTokenizerFast, name: str, words: list[str]) -> None:
    template = dialect(tokenizer, name).template
    made = render(tokenizer, MESSAGES, TOOLS, template)
    assert trained(tokenizer, made) == words
    assert bearing(made) == spelled(tokenizer, words)


@pytest.mark.parametrize(("tokenizer", "name", "words"), SPEAKERS)
def test_a_row_whose_prompt_is_given_apart(
    tokenizer: PreTrainedTokenizerFast, name: str, words: list[str]
) -> None:
    template = dialect(tokenizer, name).template
    made = render(tokenizer, MESSAGES, TOOLS, template, num_prompt_messages=4)
    assert trained(tokenizer, made) == words[1:]


@pytest.mark.parametrize(("tokenizer", "name", "words"), SPEAKERS)
def test_both_sides_of_a_pair(
    tokenizer: PreTrainedTokenizerFast, name: str, words: list[str]
) -> None:
    prompt, better = MESSAGES[:4], MESSAGES[4:]
    worse = [calling(call("guess", {"word": "zzz"})), said("tool", "no", tool_call_id="call_1")]
    template = dialect(tokenizer, name).template
    pair = render_pair(tokenizer, prompt, better, worse, TOOLS, template)
    assert trained(tokenizer, pair.chosen) == words[1:]
    assert trained(tokenizer, pair.rejected) == [WORSE[name]]
    assert bearing(pair.rejected) == spelled(tokenizer, [WORSE[name]])
    assert pair.rejected.text.rstrip().endswith(
        ("</tool_response><|im_end|>", "no<|im_end|>", "no<|eot_id|>")
    )
