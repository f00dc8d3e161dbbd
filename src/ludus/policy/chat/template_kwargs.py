"""Chat template arguments (such as `enable_thinking`) as defaults that are written into a template.

A template with defaults renders the same everywhere: in training, in rollouts, and for anybody who
loads the saved model with transformers, TRL or vLLM. Arguments that are passed to
`apply_chat_template` override them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from json import JSONDecodeError, JSONDecoder
from pathlib import Path

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.policy.model_ref import ModelKind, model_chain

TEMPLATE_FILE = "chat_template.jinja"
THINKING_VARIABLE = "enable_thinking"
"""The variable that switches thinking in Qwen3's template and most others."""
_MANAGED_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_DEFAULT_HEAD = re.compile(r"\{%- set (\w+) = \1 \| default\(")
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_DEFAULT_TAIL = ") %}"


def with_default_kwargs(template: str, kwargs: Mapping[str, object]) -> str:
    """Return the template with these arguments as defaults, in place of earlier ones."""
    _, plain = split_default_kwargs(template)
    # Without line breaks: not every renderer trims the one behind a block as transformers does.
    lines = [
        f"{{%- set {name} = {name} | default({_template_literal(kwargs[name])}{_DEFAULT_TAIL}"
        for name in kwargs
    ]
    return "".join(lines) + plain


def split_default_kwargs(template: str) -> tuple[JsonObject, str]:
    """Split a template into the defaults of `with_default_kwargs` and the rest."""
    kwargs: JsonObject = {}
    while match := _DEFAULT_HEAD.match(template):
        try:
            value, end = JSONDecoder().raw_decode(template, match.end())
        except JSONDecodeError:
            break
        if not template.startswith(_DEFAULT_TAIL, end):
            break
        kwargs[match[1]] = value
        template = template[end + len(_DEFAULT_TAIL) :]
    return kwargs, template


def saved_template_kwargs(name: str) -> JsonObject:
    """Return the arguments that a local model was saved with; none for a Hub model."""
    refs = (ref for ref in model_chain(name) if ref.kind is not ModelKind.HUB)
    # An adapter without a tokenizer uses its base model's.
    ref = next((ref for ref in refs if ref.kind is ModelKind.FOLDER or ref.has_tokenizer), None)
    try:
        template = "" if ref is None else (Path(ref.path) / TEMPLATE_FILE).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        template = ""
    return split_default_kwargs(template)[0]


def check_template_kwargs(kwargs: Mapping[str, object]) -> None:
    """Raise for names that Ludus sets itself and for values that are not JSON."""
    for name, value in kwargs.items():
        if name in _MANAGED_VARIABLES:
            raise ConfigError(f"The template argument {name!r} is set by Ludus. Leave it out.")
        try:
            _template_literal(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"The template argument {name!r} is not JSON: {error}.") from None


def check_kwargs_used(kwargs: Mapping[str, object], template: str, *, template_name: str) -> None:
    """Raise for template arguments whose names do not occur in the chat template."""
    words = set(re.findall(r"\w+", _COMMENT.sub("", template)))
    for name in kwargs:
        if not (name.isidentifier() and name in words):
            switch = " (`thinking`)" if name == THINKING_VARIABLE else ""
            raise ConfigError(
                f"The chat template ({template_name}) has no variable {name!r}{switch}. "
                "Leave it out."
            )


def _template_literal(value: object) -> str:
    """Encode as JSON, which is valid Jinja: null is undefined there, and so counts as false."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
