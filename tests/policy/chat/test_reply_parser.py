"""Parsing of replies: well-formed ones as intended, malformed calls with their raw text."""

from __future__ import annotations

import json
import random

import pytest
from tiny_tokenizers import of_family, with_tokens_of

from ludus.data.messages import Message
from ludus.policy.chat.chat_format import FAMILIES, find_chat_format
from ludus.policy.chat.incremental_prompt import initial_prompt_ids
from ludus.policy.chat.reply_parser import ReplyParser
from policy.conversations import PLAYED, TOOLS, read

GOOD = '<tool_call>\n{"name": "guess", "arguments": {"word": "a"}}\n</tool_call>'

NOISE = [
    GOOD, "<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "', '"}', "}}", "{name}",
    "[TOOL_CALLS]", '"parameters": ', "<function=", "<arg_key>", "word", "\n",
    "<|tool_call_start|>", "[guess(", ")]", " to=functions.guess<|message|>", "<|message|>",
    "<tool_call><function=guess>", "<tool_call>guess\n",
]  # fmt: skip
OPENINGS = {
    "llama3": '"name"', "mistral": "[TOOL_CALLS]",
    "gptoss": "to=functions.",
}  # fmt: skip
"""The start of a call by family; <tool_call> for all others."""


def parse_reply(text: str, family: str = "chatml") -> Message:
    """Parse a reply that follows a prompt."""
    tokenizer = with_tokens_of(family) if family in FAMILIES else of_family(family)
    chat_format = find_chat_format(tokenizer)
    prompt = initial_prompt_ids(tokenizer, chat_format, PLAYED["messages"][:2], TOOLS)
    return read(
        tokenizer, chat_format, prompt, tokenizer(text, add_special_tokens=False).input_ids, TOOLS
    )


def calls(message: Message) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def test_plain_text_is_content() -> None:
    message = parse_reply("It is 42.<|im_end|>")
    assert (message.role, message.content, message.tool_calls) == ("assistant", "It is 42.", None)


def test_an_empty_reply_is_an_empty_message() -> None:
    assert parse_reply("") == parse_reply("<|im_end|>") == Message(role="assistant")


def test_content_around_a_call_is_kept() -> None:
    message = parse_reply(f"First this.\n{GOOD}\nThen that.<|im_end|>")
    assert message.content == "First this.\nThen that."
    assert calls(message) == [("guess", '{"word": "a"}')]


def test_a_call_behind_a_malformed_one_is_parsed() -> None:
    message = parse_reply(
        f'<tool_call>\n{{"name": "guess", "arguments": {{"word": }}}}\n</tool_call>\n{GOOD}'
    )
    assert calls(message) == [
        ("guess", '{"name": "guess", "arguments": {"word": }}'),
        ("guess", '{"word": "a"}'),
    ]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ('{"name": "guess", "arguments": {"word": "a"', "guess"),
        ('{"name": "guess", "argu', "guess"),
        ('{"name": "gue', ""),
        ("guess(word='a')", ""),
        ('["guess", "a"]', ""),
        ('{"arguments": {"word": "a"}}', ""),
        ('{"name": 7, "arguments": {}}', ""),
        ('{"name": "guess"}}', "guess"),
        ('{"name": "guess", "parameters": {"word": "a"}}', "guess"),
        ('{"name": "guess", "arguments": {}, "word": "a"}', "guess"),
        ('{"name": "guess", "arguments": {}} and so on', "guess"),
        ("[" * 5000, ""),
        ("", ""),
    ],
)
@pytest.mark.parametrize("end", ["\n</tool_call><|im_end|>", "<|im_end|>", ""])
def test_a_malformed_call_is_a_call_with_its_raw_text(body: str, name: str, end: str) -> None:
    message = parse_reply("<tool_call>\n" + body + end)
    assert calls(message) == [(name, body)]
    assert message.content == ""


def test_a_complete_call_without_closing_tag_is_parsed() -> None:
    open_ended = GOOD.removesuffix("\n</tool_call>")
    assert (
        calls(parse_reply(open_ended))
        == calls(parse_reply(open_ended + "<|im_end|>"))
        == calls(parse_reply(GOOD))
    )


def test_arguments_are_parsed_unchanged() -> None:
    arguments = {
        "word": '}{ "quoted" \\ </think> ☃ 0042',
        "deep": [{"a": {"b": [None, True]}}, -1.5e3],
    }
    body = json.dumps({"name": "guess", "arguments": arguments}, ensure_ascii=False)
    ((name, arguments_json),) = calls(parse_reply(f"<tool_call>\n{body}\n</tool_call><|im_end|>"))
    assert name == "guess" and json.loads(arguments_json) == arguments


def test_missing_arguments_are_an_empty_object() -> None:
    assert calls(parse_reply('<tool_call>{"name": "look"}</tool_call>')) == [("look", "{}")]
    assert calls(parse_reply('<tool_call>{"name": "look", "arguments": null}</tool_call>')) == [
        ("look", "{}")
    ]


def test_lone_surrogates_are_replaced() -> None:
    (call,) = calls(
        parse_reply('<tool_call>{"name": "guess", "arguments": {"word": "\\ud800"}}</tool_call>')
    )
    assert json.loads(call[1].encode().decode()) == {"word": "?"}


def test_reasoning_that_was_cut_off_is_reasoning() -> None:
    message = parse_reply("<think>\nVowels first, and th")
    assert (message.reasoning_content, message.content) == ("Vowels first, and th", "")


def test_another_stop_token_is_not_content() -> None:
    tokenizer = with_tokens_of("chatml")
    tokenizer.eos_token = "<bos>"
    chat_format = find_chat_format(tokenizer)
    ids = tokenizer("It is 42.<bos>", add_special_tokens=False).input_ids
    assert read(tokenizer, chat_format, [], ids, None).content == "It is 42."


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "guess", "parameters": {"word": "a", "deep": {"b": {}}}}<|eot_id|>',
        '{"name": "guess", "arguments": {"word": "a", "deep": {"b": {}}}}',
        'So:\n{"name":"guess","parameters":{"word":"a","deep":{"b":{}}}}\n',
    ],
)
def test_llama3_writes_calls_as_bare_objects(text: str) -> None:
    ((name, arguments_json),) = calls(parse_reply(text, "llama3"))
    assert name == "guess" and json.loads(arguments_json) == {"word": "a", "deep": {"b": {}}}


def test_text_behind_a_bare_object_makes_it_malformed() -> None:
    text = '{"name": "guess", "parameters": {"word": "a"}} I think.<|eot_id|>'
    assert calls(parse_reply(text, "llama3")) == [("guess", '{"word": "a"}} I think.')]


def test_a_list_of_calls_that_was_cut_off_is_one_malformed_call() -> None:
    good = '[TOOL_CALLS] [{"name": "guess", "arguments": {"word": "a"}}, {"name": "add", "argu'
    assert calls(parse_reply(good + 'ments": {}}]</s>', "mistral")) == [
        ("guess", '{"word": "a"}'),
        ("add", "{}"),
    ]
    assert calls(parse_reply(good, "mistral")) == [("guess", good.removeprefix("[TOOL_CALLS] "))]


def test_xml_arguments_have_the_types_of_the_tools_schema() -> None:
    text = (
        "<tool_call>\n<function=add>\n<parameter=a>\n007\n</parameter>\n<parameter=b>\n2\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=guess>\n"
        "<parameter=word>\n007\n</parameter>\n</function>\n</tool_call><|im_end|>"
    )
    message = calls(parse_reply(text, "qwen3_5_nothink"))
    assert message == [("add", '{"a": 7, "b": 2}'), ("guess", '{"word": "007"}')]


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_5_think", "glm4moe", "gptoss"])
def test_random_text_neither_raises_nor_invents_calls(family: str) -> None:
    tokenizer = with_tokens_of(family) if family in FAMILIES else of_family(family)
    chat_format = find_chat_format(tokenizer)
    prompt = initial_prompt_ids(tokenizer, chat_format, PLAYED["messages"][:2], TOOLS)
    rng = random.Random(family)
    opening, without_call, with_call = OPENINGS.get(family, "<tool_call>"), 0, 0
    for _ in range(100):
        # The prompts of some families open a thought, within which nothing is a call.
        text = "".join([rng.choice(["", "</think>"]), *rng.choices(NOISE, k=rng.randrange(1, 8))])
        ids = tokenizer(text, add_special_tokens=False).input_ids
        ids += rng.choices(range(len(tokenizer)), k=5)
        message = read(tokenizer, chat_format, prompt, ids, TOOLS)
        assert Message.model_validate_json(message.model_dump_json()) == message
        text = tokenizer.decode(ids)
        assert opening in text or not calls(message)
        for name, arguments in calls(message):
            assert name in text and (name or arguments in text)
        without_call, with_call = (
            without_call + (opening not in text),
            with_call + bool(calls(message)),
        )
    assert without_call > 5 and with_call > 5, "both cases occur"


@pytest.mark.parametrize("family", ["chatml", "phi", "gemma"])
def test_simple_replies_are_parsed_as_by_the_parser_of_transformers(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(0)
    pieces = [
        "Known: a, b.\n", "", " ", "x < y", "\n", "<think>no</think>", GOOD, "</tool_call>", "end",
        '<tool_call>{"name": "guess", "arguments": {"w": "\\u00e9", "n": [1, null]}}</tool_call>',
        '<tool_call>{"name": "guess"}</tool_call>', '<tool_call>["guess"]</tool_call>',
        '<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": "a", "x": 1}</tool_call>',
    ]  # fmt: skip
    tokenizer = with_tokens_of(family)
    stop = tokenizer.decode(list(find_chat_format(tokenizer).stop_token_ids)[:1])
    texts = ["".join(rng.choices(pieces, k=rng.randint(1, 4))) for _ in range(60)]
    texts = [text + end for text in texts for end in ("", stop, f" {stop}\n")]
    fast = [parse_reply(text, family) for text in texts]
    monkeypatch.setattr(ReplyParser, "_split_plain_call", lambda *_: None)
    assert fast == [parse_reply(text, family) for text in texts]
