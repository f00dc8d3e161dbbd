"""Variants in which model families write tool calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tiny_tokenizers import of_family
from tokenizers import AddedToken

from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.chat.incremental_prompt import initial_prompt_ids
from policy.chat.test_reply_parser import calls, parse_reply
from policy.conversations import PLAYED, TOOLS, read


def parse_calls(text: str, family: str) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls(parse_reply(text, family))]


@pytest.mark.parametrize(
    "text",
    [
        " to=functions.add<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.add <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.add<|message|>",
        "<|channel|>analysis to=functions.add code<|message|>",
        " to=functions.add<|channel|>commentary <|constrain|>json<|message|>",
    ],
)
@pytest.mark.parametrize(
    "thought", ["", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"]
)
def test_gpt_oss_writes_tool_and_channel_in_either_order(text: str, thought: str) -> None:
    message = parse_reply(f'{thought}{text}{{"a": 1, "b": 2}}<|call|>', "gptoss")
    assert calls(message) == [("add", '{"a": 1, "b": 2}')]
    assert (message.content, message.reasoning_content) == ("", "Hm." if thought else None)


def test_gpt_oss_commentary_before_a_call_is_content() -> None:
    call = (
        '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    )
    message = parse_reply(f"<|channel|>commentary<|message|>I add.<|end|>{call}", "gptoss")
    assert (message.content, calls(message)) == ("I add.", [("add", '{"a": 1}')])


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "function", "name": "guess", "parameters": {"word": "a"}}',
        '{\n  "name": "guess",\n  "parameters": {\n    "word": "a"\n  }\n}',
        '{\n  "type": "function",\n  "name": "guess",\n  "parameters": {"word": "a"}\n}\n',
        '<|python_tag|>{"name": "guess", "parameters": {"word": "a"}};',
    ],
)
def test_llama_calls_may_have_a_type_and_line_breaks(text: str) -> None:
    for end in ("<|eot_id|>", ""):
        assert parse_calls(text + end, "llama3") == [("guess", {"word": "a"})]


@pytest.mark.parametrize("between", ["; ", ";\n", "\n", " ", ";<|python_tag|>"])
def test_llama_calls_may_be_separated_by_semicolons(between: str) -> None:
    first = '{"name": "guess", "parameters": {"word": "}; {"}}'
    second = '{"type": "function", "name": "add", "parameters": {"a": 1}}'
    message = parse_calls(f"{first}{between}{second}<|eot_id|>", "llama3")
    assert message == [("guess", {"word": "}; {"}), ("add", {"a": 1})]


def test_a_single_mistral_call_needs_no_list() -> None:
    text = '[TOOL_CALLS] {"name": "guess", "arguments": {"word": "a"}}</s>'
    assert parse_calls(text, "mistral") == [("guess", {"word": "a"})]
    broken = '{"name": "guess", "parameters": {"word": "a"}}'
    assert calls(parse_reply(f"[TOOL_CALLS] {broken}</s>", "mistral")) == [("guess", broken)]


@pytest.mark.parametrize("family", ["phi3", "phi3_5"])
def test_special_tokens_may_absorb_the_line_break_behind_them(family: str) -> None:
    """As Phi's do."""
    tokenizer = of_family(family)
    tokens = ("<|user|>", "<|assistant|>", "<|end|>", "<|system|>")
    absorbing = [AddedToken(mark, rstrip=True, normalized=False, special=True) for mark in tokens]
    tokenizer.add_tokens(absorbing, special_tokens=True)
    chat_format = find_chat_format(tokenizer)
    assert (chat_format.name, chat_format.origin) == ("phi", "ludus")
    prompt = initial_prompt_ids(tokenizer, chat_format, PLAYED["messages"][:2], TOOLS)
    assert tokenizer.decode(prompt).endswith("<|assistant|>")
    reply = tokenizer("It is 42.<|end|>", add_special_tokens=False).input_ids
    assert read(tokenizer, chat_format, prompt, reply, TOOLS).content == "It is 42."
