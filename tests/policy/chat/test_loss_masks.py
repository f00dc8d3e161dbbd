"""The loss is exactly on the assistant's tokens, with tools and over several turns."""

from __future__ import annotations

import pytest
from tiny_tokenizers import of_family, student
from transformers import PreTrainedTokenizerFast

from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.chat.rendering import RenderedConversation, render
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
REJECTED = {
    "qwen3": '<think>\n\n</think>\n\n<tool_call>\n{"name": "guess", "arguments": {"word": "zzz"}}\n'
    "</tool_call><|im_end|>\n",
    "chatml": '<tool_call>\n{"name": "guess", "arguments": {"word": "zzz"}}\n'
    "</tool_call><|im_end|>",
    "llama3": '{"name": "guess", "parameters": {"word": "zzz"}}<|eot_id|>',
}
CASES = [
    pytest.param(of_family("qwen3"), "qwen3", QWEN3, id="qwen3"),
    pytest.param(student(), "chatml", CHATML, id="chatml"),
    pytest.param(of_family("llama3_1"), "llama3", LLAMA3, id="llama3"),
]


def texts_with_loss(
    tokenizer: PreTrainedTokenizerFast, rendered: RenderedConversation
) -> list[str]:
    """The text of each range of tokens with loss."""
    return [tokenizer.decode(rendered.ids[start:end]) for start, end in rendered.spans]


def tokenize(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[int]:
    return [
        token for text in texts for token in tokenizer(text, add_special_tokens=False).input_ids
    ]


def ids_with_loss(rendered: RenderedConversation) -> list[int]:
    return [token for token, has_loss in zip(rendered.ids, rendered.mask, strict=True) if has_loss]


def template_for(tokenizer: PreTrainedTokenizerFast, name: str) -> str:
    chat_format = find_chat_format(tokenizer)
    assert chat_format.name == name
    return chat_format.template


@pytest.mark.parametrize(("tokenizer", "name", "expected"), CASES)
def test_loss_of_an_sft_row(
    tokenizer: PreTrainedTokenizerFast, name: str, expected: list[str]
) -> None:
    template = template_for(tokenizer, name)
    rendered = render(tokenizer, MESSAGES, TOOLS, template)
    assert texts_with_loss(tokenizer, rendered) == expected
    assert ids_with_loss(rendered) == tokenize(tokenizer, expected)


@pytest.mark.parametrize(("tokenizer", "name", "expected"), CASES)
def test_the_prompt_of_a_row_has_no_loss(
    tokenizer: PreTrainedTokenizerFast, name: str, expected: list[str]
) -> None:
    template = template_for(tokenizer, name)
    rendered = render(tokenizer, MESSAGES, TOOLS, template, num_prompt_messages=4)
    assert texts_with_loss(tokenizer, rendered) == expected[1:]


@pytest.mark.parametrize(("tokenizer", "name", "expected"), CASES)
def test_loss_of_both_sides_of_a_pair(
    tokenizer: PreTrainedTokenizerFast, name: str, expected: list[str]
) -> None:
    prompt, chosen = MESSAGES[:4], MESSAGES[4:]
    rejected = [calling(call("guess", {"word": "zzz"})), said("tool", "no", tool_call_id="call_1")]
    template = template_for(tokenizer, name)
    first, second = (
        render(tokenizer, [*prompt, *side], TOOLS, template, num_prompt_messages=len(prompt))
        for side in (chosen, rejected)
    )
    assert texts_with_loss(tokenizer, first) == expected[1:]
    assert texts_with_loss(tokenizer, second) == [REJECTED[name]]
    assert ids_with_loss(second) == tokenize(tokenizer, [REJECTED[name]])
    assert second.text.rstrip().endswith(
        ("</tool_response><|im_end|>", "no<|im_end|>", "no<|eot_id|>")
    )
