"""Calls in the ways that families write them, also where a model does it a little otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from students import of_family
from tokenizers import AddedToken

from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.chat.incremental_prompt import initial_prompt_ids
from policy.chat.test_reply_parser import calls, heard
from policy.conversations import PLAYED, TOOLS, read

START, END = "<|tool_call_start|>", "<|tool_call_end|><|im_end|>"


def meant(text: str, family: str) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls(heard(text, family))]


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
def test_gpt_oss_names_tool_and_channel_in_either_order(text: str, thought: str) -> None:
    made = heard(f'{thought}{text}{{"a": 1, "b": 2}}<|call|>', "gptoss")
    assert calls(made) == [("add", '{"a": 1, "b": 2}')]
    assert (made.content, made.reasoning_content) == ("", "Hm." if thought else None)


def test_what_gpt_oss_says_before_a_call_is_said() -> None:
    call = (
        '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    )
    made = heard(f"<|channel|>commentary<|message|>I add.<|end|>{call}", "gptoss")
    assert (made.content, calls(made)) == ("I add.", [("add", '{"a": 1}')])


@pytest.mark.parametrize(
    "word",
    [
        "a, b",
        "(b)",
        "b), add(a=1",
        "[x]",
        "]",
        "{1}",
        "it's",
        'the "one"',
        "\\",
        "two\nlines",
        "'",
        "",
    ],
)
def test_lfm_keeps_whatever_is_inside_a_string(word: str) -> None:
    for written in (repr(word), json.dumps(word)):
        text = f"{START}[guess(word={written}), add(a=1, b=2)]{END}"
        assert meant(text, "lfm2_v2") == [("guess", {"word": word}), ("add", {"a": 1, "b": 2})]


def test_lfm_writes_values_as_python_or_as_json() -> None:
    text = f"{START}[put(a=[1, {{'b': None}}], c=True, d=[true, null], e=-1.5), look()]{END}"
    arguments = {"a": [1, {"b": None}], "c": True, "d": [True, None], "e": -1.5}
    assert meant(text, "lfm2_v2") == [("put", arguments), ("look", {})]
    assert meant(f"{START}look(){END}", "lfm2_v2") == [("look", {})]


def test_lfm_calls_nothing_in_its_words() -> None:
    made = heard("First, add(1) is nice, guess(x) too.<|im_end|>", "lfm2_v2")
    assert (made.content, made.tool_calls) == ("First, add(1) is nice, guess(x) too.", None)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("[guess(word='a", "guess"),
        ("[guess('a')]", "guess"),
        ("[guess(word=open('a'))]", "guess"),
        ("[guess(**{'word': 'a'})]", "guess"),
        ("[guess(word=a)]", "guess"),
        ("[guess(word={**{}})]", "guess"),
        ("[guess()(word='a')]", "guess"),
        ("[guess, add]", ""),
        ("[]", ""),
        ("[" * 3000, ""),
        ("[guess(word='" + "\\" * 3001 + "')]", "guess"),
    ],
)
def test_what_lfm_did_not_write_as_calls_is_a_malformed_one(body: str, name: str) -> None:
    assert calls(heard(START + body + END, "lfm2_v2")) == [(name, body)]


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "function", "name": "guess", "parameters": {"word": "a"}}',
        '{\n  "name": "guess",\n  "parameters": {\n    "word": "a"\n  }\n}',
        '{\n  "type": "function",\n  "name": "guess",\n  "parameters": {"word": "a"}\n}\n',
        '<|python_tag|>{"name": "guess", "parameters": {"word": "a"}};',
    ],
)
def test_llama_may_name_a_type_and_break_lines(text: str) -> None:
    for end in ("<|eot_id|>", ""):
        assert meant(text + end, "llama3") == [("guess", {"word": "a"})]


@pytest.mark.parametrize("between", ["; ", ";\n", "\n", " ", ";<|python_tag|>"])
def test_llama_may_put_a_semicolon_between_calls(between: str) -> None:
    first = '{"name": "guess", "parameters": {"word": "}; {"}}'
    second = '{"type": "function", "name": "add", "parameters": {"a": 1}}'
    made = meant(f"{first}{between}{second}<|eot_id|>", "llama3")
    assert made == [("guess", {"word": "}; {"}), ("add", {"a": 1})]


def test_one_call_of_mistrals_needs_no_list() -> None:
    text = '[TOOL_CALLS] {"name": "guess", "arguments": {"word": "a"}}</s>'
    assert meant(text, "mistral") == [("guess", {"word": "a"})]
    broken = '{"name": "guess", "parameters": {"word": "a"}}'
    assert calls(heard(f"[TOOL_CALLS] {broken}</s>", "mistral")) == [("guess", broken)]


@pytest.mark.parametrize("family", ["phi3", "phi3_5"])
def test_tokens_that_swallow_the_line_break_behind_them_are_no_hindrance(family: str) -> None:
    """As those of Phi do."""
    tokenizer = of_family(family)
    marks = ("<|user|>", "<|assistant|>", "<|end|>", "<|system|>")
    swallowing = [AddedToken(mark, rstrip=True, normalized=False, special=True) for mark in marks]
    tokenizer.add_tokens(swallowing, special_tokens=True)
    dialect = find_chat_format(tokenizer)
    assert (dialect.name, dialect.origin) == ("phi", "ludus")
    prompt = initial_prompt_ids(tokenizer, dialect, PLAYED["messages"][:2], TOOLS)
    assert tokenizer.decode(prompt).endswith("<|assistant|>")
    reply = tokenizer("It is 42.<|end|>", add_special_tokens=False).input_ids
    assert read(tokenizer, dialect, prompt, reply, TOOLS).content == "It is 42."
