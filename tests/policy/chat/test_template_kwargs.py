"""Chat template arguments as defaults within the template."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_tokenizers import of_family, template_of
from transformers.utils.chat_template_utils import render_jinja_template

from ludus.errors import ConfigError
from ludus.policy.chat.template_kwargs import (
    check_kwargs_used,
    check_template_kwargs,
    split_default_kwargs,
    with_default_kwargs,
)

VALUES = [
    False,
    3,
    0.25,
    'quotes " and %} and {# and ü',
    ["a", {"deep": [True, "☃ 😀"]}],
]


def rendered(template: str, **kwargs: Any) -> str:
    texts: Any = render_jinja_template([[]], chat_template=template, **kwargs)[0]
    return str(texts[0])


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_default_is_rendered_and_can_be_split_off_again(value: Any) -> None:
    plain = " {{ a | tojson }}\n"
    template = with_default_kwargs(plain, {"a": value, "b": 1})
    assert rendered(template) == rendered(plain, a=value)
    assert split_default_kwargs(template) == ({"a": value, "b": 1}, plain)


def test_a_passed_argument_overrides_a_default() -> None:
    assert rendered(with_default_kwargs("{{ a }}", {"a": 1}), a=2) == "2"


def test_new_defaults_replace_old_ones() -> None:
    template = with_default_kwargs(
        with_default_kwargs("{{ a }}{{ b }}", {"a": 1, "b": 2}), {"b": 3}
    )
    assert split_default_kwargs(template) == ({"b": 3}, "{{ a }}{{ b }}")


@pytest.mark.parametrize(
    "template", ["{%- set a = a | default(b) %}{{ a }}", "{%- set a = a | default(1, true) %}"]
)
def test_default_filters_of_the_template_itself_are_kept(template: str) -> None:
    assert split_default_kwargs(template) == ({}, template)


@pytest.mark.parametrize("kwargs", [{"messages": []}, {"a": float("nan")}, {"a": {1}}])
def test_values_that_are_not_json_are_rejected(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=repr(next(iter(kwargs)))):
        check_template_kwargs(kwargs)


def test_unused_variables_are_rejected_by_name() -> None:
    check_kwargs_used({"enable_thinking": True}, template_of("qwen3"), template_name="qwen3")
    for name in ("enable_thinkin", "enable_thinking ", "%}"):
        with pytest.raises(ConfigError, match="has no variable"):
            check_kwargs_used({name: True}, template_of("qwen3"), template_name="qwen3")
    with pytest.raises(ConfigError, match="`thinking`"):
        check_kwargs_used(
            {"enable_thinking": False}, template_of("qwen2_5"), template_name="qwen2_5"
        )


def test_a_saved_tokenizer_renders_with_the_defaults(tmp_path: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = of_family("qwen3")
    tokenizer.chat_template = with_default_kwargs(template_of("qwen3"), {"enable_thinking": False})
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "Hi."}]
    options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True}
    closed = "<think>\n\n</think>\n\n"
    assert loaded.apply_chat_template(messages, **options).endswith(closed)
    assert not loaded.apply_chat_template(messages, enable_thinking=True, **options).endswith(
        closed
    )
