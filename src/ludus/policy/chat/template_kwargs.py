"""Chat template arguments (such as `enable_thinking`) as defaults that are written into a template.

A template with defaults renders the same everywhere: in training, in rollouts, and for anybody who
loads the saved model with transformers, TRL or vLLM. Arguments that are passed to
`apply_chat_template` override them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from json import JSONDecodeError, JSONDecoder
from pathlib import Path

from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, did_you_mean
from ludus.policy.model_ref import ModelKind, model_chain

TEMPLATE_FILE = "chat_template.jinja"
THINKING_VARIABLE = "enable_thinking"
"""The variable that switches thinking in Qwen3's template and most others."""
_MANAGED_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_DEFAULT_HEAD = re.compile(r"\{%- set (\w+) = \1 \| default\(")
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
    # An adapter without a tokenizer has that of its base model.
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
        if _kwarg_has_null(value):
            raise ConfigError(
                f"The template argument {name!r} contains null. Leave it out, or set a value."
            )
        try:
            _template_literal(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"The template argument {name!r} is not JSON: {error}.") from None


def check_kwargs_used(kwargs: Mapping[str, object], template: str, *, template_name: str) -> None:
    """Raise for template arguments that the chat template does not use."""
    known = template_variables(template)
    for name in kwargs:
        if name in known:
            continue
        others = ", ".join(sorted(known)) or "none"
        hint = did_you_mean(name, known, f"Leave it out. Variables it reads: {others}.")
        switch = " (`thinking`)" if name == THINKING_VARIABLE else ""
        raise ConfigError(
            f"The chat template ({template_name}) has no variable {name!r}{switch}. {hint}"
        )


@lru_cache(64)
def template_variables(template: str) -> frozenset[str]:
    """Return the variables that a user can set; none if the template is not valid Jinja."""
    from jinja2 import Environment, TemplateError, meta, nodes

    # The tags of transformers mark a part of the template, which is parsed without them.
    plain = _GENERATION_TAGS.sub("", template)
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)
    except TemplateError:
        return frozenset()
    # Jinja also reports variables that are assigned on one branch only. Of those, a user can set
    # the ones with a default (`x is defined`, `x | default(...)`).
    assigned = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "store"}
    optional = {
        node.node.name
        for node in tree.find_all((nodes.Test, nodes.Filter))
        if node.name in ("defined", "undefined", "default") and isinstance(node.node, nodes.Name)
    }
    unset = meta.find_undeclared_variables(tree) - (assigned - optional)
    return frozenset(
        name
        for name in unset - _MANAGED_VARIABLES - _TEMPLATE_FUNCTIONS
        if not name.endswith("_token")
    )


_GENERATION_TAGS = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
_TEMPLATE_FUNCTIONS = frozenset(
    {"raise_exception", "strftime_now", "namespace", "dict", "range", "caller"}
)
"""Functions that transformers provides to templates."""


def _template_literal(value: object) -> str:
    """Encode as JSON, which is valid Jinja too, except for null."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _kwarg_has_null(value: object) -> bool:
    """Whether a template argument is or contains null, which Jinja does not know."""
    if isinstance(value, Mapping):
        return any(map(_kwarg_has_null, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_kwarg_has_null, value))
    return value is None
