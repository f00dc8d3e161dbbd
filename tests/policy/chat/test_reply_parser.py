"""Whatever a model writes is read: what is well formed as it was meant, the rest as it stands."""

from __future__ import annotations

import json
import random

import pytest
from students import of_family, with_tokens_of

from ludus.data.messages import Message
from ludus.policy.chat.chat_format import FAMILIES, find_chat_format
from ludus.policy.chat.incremental_prompt import initial_prompt_ids
from policy.conversations import PLAYED, TOOLS, read

GOOD = '<tool_call>\n{"name": "guess", "arguments": {"word": "a"}}\n</tool_call>'

NOISE = [
    GOOD, "<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "', '"}', "}}", "{name}",
    "[TOOL_CALLS]", '"parameters": ', "<function=", "<arg_key>", "word", "\n",
    "<|tool_call_start|>", "[guess(", ")]", " to=functions.guess<|message|>", "<|message|>",
    "<tool_call><function=guess>", "<tool_call>guess\n",
]  # fmt: skip
OPENINGS = {
    "llama3": '"name"', "mistral": "[TOOL_CALLS]", "lfm2_v2": "<|tool_call_start|>",
    "gptoss": "to=functions.",
}  # fmt: skip
"""What a family begins its calls with; all others with <tool_call>."""


def heard(text: str, family: str = "chatml") -> Message:
    """A reply as it is read after a prompt."""
    tokenizer = with_tokens_of(family) if family in FAMILIES else of_family(family)
    dialect = find_chat_format(tokenizer)
    prompt = initial_prompt_ids(tokenizer, dialect, PLAYED["messages"][:2], TOOLS)
    return read(
        tokenizer, dialect, prompt, tokenizer(text, add_special_tokens=False).input_ids, TOOLS
    )


def calls(made: Message) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in made.tool_calls or ()]


def test_words_alone_are_no_call() -> None:
    made = heard("It is 42.<|im_end|>")
    assert (made.role, made.content, made.tool_calls) == ("assistant", "It is 42.", None)


def test_nothing_at_all_is_an_empty_message() -> None:
    assert heard("") == heard("<|im_end|>") == Message(role="assistant")


def test_words_before_and_after_a_call_are_kept() -> None:
    made = heard(f"First this.\n{GOOD}\nThen that.<|im_end|>")
    assert made.content == "First this.\nThen that."
    assert calls(made) == [("guess", '{"word": "a"}')]


def test_a_call_after_a_broken_one_is_still_read() -> None:
    made = heard(
        f'<tool_call>\n{{"name": "guess", "arguments": {{"word": }}}}\n</tool_call>\n{GOOD}'
    )
    assert calls(made) == [
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
    made = heard("<tool_call>\n" + body + end)
    assert calls(made) == [(name, body)]
    assert made.content == ""


def test_a_whole_call_that_is_not_closed_is_read() -> None:
    open_ended = GOOD.removesuffix("\n</tool_call>")
    assert calls(heard(open_ended)) == calls(heard(open_ended + "<|im_end|>")) == calls(heard(GOOD))


def test_what_arguments_hold_comes_out_as_it_went_in() -> None:
    arguments = {
        "word": '}{ "quoted" \\ </think> ☃ 0042',
        "deep": [{"a": {"b": [None, True]}}, -1.5e3],
    }
    body = json.dumps({"name": "guess", "arguments": arguments}, ensure_ascii=False)
    ((name, written),) = calls(heard(f"<tool_call>\n{body}\n</tool_call><|im_end|>"))
    assert name == "guess" and json.loads(written) == arguments


def test_a_call_without_arguments_has_none() -> None:
    assert calls(heard('<tool_call>{"name": "look"}</tool_call>')) == [("look", "{}")]
    assert calls(heard('<tool_call>{"name": "look", "arguments": null}</tool_call>')) == [
        ("look", "{}")
    ]


def test_half_a_character_can_be_written_down() -> None:
    (call,) = calls(
        heard('<tool_call>{"name": "guess", "arguments": {"word": "\\ud800"}}</tool_call>')
    )
    assert json.loads(call[1].encode().decode()) == {"word": "?"}


def test_a_thought_that_was_cut_off_is_a_thought() -> None:
    made = heard("<think>\nVowels first, and th")
    assert (made.reasoning_content, made.content) == ("Vowels first, and th", "")


def test_another_end_than_the_turns_is_no_word() -> None:
    tokenizer = with_tokens_of("chatml")
    tokenizer.eos_token = "<bos>"
    dialect = find_chat_format(tokenizer)
    ids = tokenizer("It is 42.<bos>", add_special_tokens=False).input_ids
    assert read(tokenizer, dialect, [], ids, None).content == "It is 42."


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "guess", "parameters": {"word": "a", "deep": {"b": {}}}}<|eot_id|>',
        '{"name": "guess", "arguments": {"word": "a", "deep": {"b": {}}}}',
        'So:\n{"name":"guess","parameters":{"word":"a","deep":{"b":{}}}}\n',
    ],
)
def test_a_bare_object_is_a_call_to_llama(text: str) -> None:
    ((name, written),) = calls(heard(text, "llama3"))
    assert name == "guess" and json.loads(written) == {"word": "a", "deep": {"b": {}}}


def test_a_bare_object_with_something_behind_it_is_malformed() -> None:
    text = '{"name": "guess", "parameters": {"word": "a"}} I think.<|eot_id|>'
    assert calls(heard(text, "llama3")) == [("guess", '{"word": "a"}} I think.')]


def test_a_list_of_calls_that_breaks_off_is_one_malformed_call() -> None:
    good = '[TOOL_CALLS] [{"name": "guess", "arguments": {"word": "a"}}, {"name": "add", "argu'
    assert calls(heard(good + 'ments": {}}]</s>', "mistral")) == [
        ("guess", '{"word": "a"}'),
        ("add", "{}"),
    ]
    assert calls(heard(good, "mistral")) == [("guess", good.removeprefix("[TOOL_CALLS] "))]


def test_arguments_written_as_text_have_the_types_of_the_tool() -> None:
    text = (
        "<tool_call>\n<function=add>\n<parameter=a>\n007\n</parameter>\n<parameter=b>\n2\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=guess>\n"
        "<parameter=word>\n007\n</parameter>\n</function>\n</tool_call><|im_end|>"
    )
    made = calls(heard(text, "qwen3_5_nothink"))
    assert made == [("add", '{"a": 7, "b": 2}'), ("guess", '{"word": "007"}')]


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_5_think", "glm4moe", "lfm2_v2", "gptoss"])
def test_no_noise_raises_or_makes_up_a_call(family: str) -> None:
    tokenizer = with_tokens_of(family) if family in FAMILIES else of_family(family)
    dialect = find_chat_format(tokenizer)
    prompt = initial_prompt_ids(tokenizer, dialect, PLAYED["messages"][:2], TOOLS)
    draw = random.Random(family)
    begin, silent, called = OPENINGS.get(family, "<tool_call>"), 0, 0
    for _ in range(100):
        # The prompt of some has begun a thought, in which nothing is a call.
        text = "".join(
            [draw.choice(["", "</think>"]), *draw.choices(NOISE, k=draw.randrange(1, 8))]
        )
        ids = tokenizer(text, add_special_tokens=False).input_ids
        ids += draw.choices(range(len(tokenizer)), k=5)
        made = read(tokenizer, dialect, prompt, ids, TOOLS)
        assert Message.model_validate_json(made.model_dump_json()) == made
        text = tokenizer.decode(ids)
        assert begin in text or not calls(made)
        for name, arguments in calls(made):
            assert name in text and (name or arguments in text)
        silent, called = silent + (begin not in text), called + bool(calls(made))
    assert silent > 5 and called > 5, "both have been tried"
