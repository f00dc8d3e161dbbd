"""Arguments of a chat template become its defaults, and are found in it again."""

from __future__ import annotations

from typing import Any

import pytest
from students import of_family, template_of
from transformers.utils.chat_template_utils import render_jinja_template

from ludus.errors import ConfigError
from ludus.policy.chat.template_defaults import (
    check_template_kwargs,
    check_template_variables,
    split_defaults,
    template_variables,
    with_defaults,
)

VALUES = [
    False,
    3,
    0.25,
    'quotes " and %} and {# and ü',
    ["a", {"deep": [True, "☃ 😀"]}],
]


def shown(template: str, **passed: Any) -> str:
    texts: Any = render_jinja_template([[]], chat_template=template, **passed)[0]
    return str(texts[0])


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_default_is_what_the_template_sees_and_what_is_read_back(value: Any) -> None:
    plain = " {{ a | tojson }}\n"
    template = with_defaults(plain, {"a": value, "b": 1})
    assert shown(template) == shown(plain, a=value)
    assert split_defaults(template) == ({"a": value, "b": 1}, plain)


def test_what_is_passed_wins_over_a_default() -> None:
    assert shown(with_defaults("{{ a }}", {"a": 1}), a=2) == "2"


def test_new_defaults_take_the_place_of_old_ones() -> None:
    template = with_defaults(with_defaults("{{ a }}{{ b }}", {"a": 1, "b": 2}), {"b": 3})
    assert split_defaults(template) == ({"b": 3}, "{{ a }}{{ b }}")


@pytest.mark.parametrize(
    "template", ["{%- set a = a | default(b) %}{{ a }}", "{%- set a = a | default(1, true) %}"]
)
def test_a_line_that_makers_wrote_differently_is_theirs(template: str) -> None:
    assert split_defaults(template) == ({}, template)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("qwen3", {"enable_thinking"}),
        ("qwen3_training", {"enable_thinking"}),
        ("qwen2_5", set[str]()),
        ("llama3_2", {"custom_tools", "date_string", "tools_in_user_message"}),
        ("gptoss", {"builtin_tools", "model_identity", "reasoning_effort"}),
    ],
)
def test_the_variables_of_a_template_are_those_that_a_user_may_set(
    family: str, names: set[str]
) -> None:
    assert template_variables(template_of(family)) == names
    defaults = dict.fromkeys(names, 1)
    assert template_variables(with_defaults(template_of(family), defaults)) == names


def test_a_template_that_is_not_jinja_has_no_variables() -> None:
    assert template_variables("{% if %}") == frozenset()


@pytest.mark.parametrize(
    "kwargs", [{"messages": []}, {"a": None}, {"a": [{"b": None}]}, {"a": float("nan")}, {"a": {1}}]
)
def test_values_that_a_template_cannot_hold_are_refused(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=repr(next(iter(kwargs)))):
        check_template_kwargs(kwargs)


def test_a_variable_that_is_not_read_is_refused_by_name() -> None:
    check_template_variables({"enable_thinking": True}, template_of("qwen3"), template_name="qwen3")
    with pytest.raises(ConfigError, match="Did you mean 'enable_thinking'"):
        check_template_variables(
            {"enable_thinkin": True}, template_of("qwen3"), template_name="qwen3"
        )
    with pytest.raises(ConfigError, match=r"--no-thinking.*reads: none"):
        check_template_variables(
            {"enable_thinking": False}, template_of("qwen2_5"), template_name="qwen2_5"
        )


def test_the_tokenizer_of_a_family_takes_the_template(tmp_path: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = of_family("qwen3")
    tokenizer.chat_template = with_defaults(template_of("qwen3"), {"enable_thinking": False})
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    talk = [{"role": "user", "content": "Hi."}]
    how: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True}
    closed = "<think>\n\n</think>\n\n"
    assert loaded.apply_chat_template(talk, **how).endswith(closed)
    assert not loaded.apply_chat_template(talk, enable_thinking=True, **how).endswith(closed)
