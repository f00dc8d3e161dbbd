"""Chat template arguments (`enable_thinking` and the like) as defaults written into the template.

A template with defaults renders the same wherever it is used: in training, in play, and by anybody
who loads the saved model, with transformers, TRL or vLLM. An argument that is passed to
`apply_chat_template` still wins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError, did_you_mean
from ludus.policy import smollm2
from ludus.policy.model_ref import ModelKind, base_model_name, find_local_model

TEMPLATE_FILE = "chat_template.jinja"
THINKING_VARIABLE = "enable_thinking"
"""The variable with which Qwen3's template and most others switch thinking."""
_MANAGED_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_DEFAULT_HEAD = re.compile(r"\{%- set (\w+) = \1 \| default\(")
_DEFAULT_TAIL = ") %}"


def with_defaults(template: str, kwargs: Mapping[str, Any]) -> str:
    """The template with these values for variables that are not passed; earlier defaults go."""
    _, plain = split_defaults(template)
    # Without line breaks: not every renderer trims the one behind a block, as transformers does.
    lines = [
        f"{{%- set {name} = {name} | default({_json(kwargs[name])}{_DEFAULT_TAIL}"
        for name in kwargs
    ]
    return "".join(lines) + plain


def split_defaults(template: str) -> tuple[dict[str, Any], str]:
    """The defaults that `with_defaults` wrote, and the template without them."""
    kwargs: dict[str, Any] = {}
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


def saved_template_kwargs(name: str, visited: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The arguments that a model on this disk was saved with; none for one on the Hub.

    What is in the Hub's cache is not looked at: it is there only once a run has begun.
    """
    source = None if name == smollm2.NAME else find_local_model(name)
    if source is None or source.kind is ModelKind.GGUF or source.path in visited:
        return {}
    folder = Path(source.path)
    if source.kind is ModelKind.ADAPTER and not any(folder.glob("tokenizer*")):
        return saved_template_kwargs(base_model_name(source), visited | {source.path})
    try:
        return split_defaults((folder / TEMPLATE_FILE).read_text(encoding="utf-8"))[0]
    except (OSError, UnicodeDecodeError):
        return {}


def check_template_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Refuse values that a template cannot hold."""
    for name, value in kwargs.items():
        if name in _MANAGED_VARIABLES:
            raise ConfigError(f"The template argument {name!r} is set by Ludus. Leave it out.")
        if _has_null(value):
            raise ConfigError(f"The template argument {name!r} is null. Leave it out, or give one.")
        try:
            _json(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"The template argument {name!r} is not JSON: {error}.") from None


def check_template_variables(
    kwargs: Mapping[str, Any], template: str, *, template_name: str
) -> None:
    """Refuse arguments that the template does not read."""
    known = template_variables(template)
    for name in kwargs:
        if name in known:
            continue
        others = ", ".join(sorted(known)) or "none"
        hint = did_you_mean(name, known, f"Leave it out. Variables it reads: {others}.")
        switch = " (--thinking, --no-thinking)" if name == THINKING_VARIABLE else ""
        raise ConfigError(
            f"The chat template ({template_name}) has no variable {name!r}{switch}. {hint}"
        )


@lru_cache(64)
def template_variables(template: str) -> frozenset[str]:
    """The variables that a template reads and a user may set; none where it is not Jinja."""
    from jinja2 import Environment, TemplateError, meta, nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        """The tag that transformers adds, read as what stands in it."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    try:
        tree = Environment(extensions=[Generation, "jinja2.ext.loopcontrols"]).parse(template)
    except TemplateError:
        return frozenset()
    # Jinja counts what is assigned on one branch only; of those, a user may set what the template
    # gives a default (`x is defined`, `x | default(...)`).
    assigned = {each.name for each in tree.find_all(nodes.Name) if each.ctx == "store"}
    optional = {
        each.node.name
        for each in tree.find_all((nodes.Test, nodes.Filter))
        if each.name in ("defined", "undefined", "default") and isinstance(each.node, nodes.Name)
    }
    read = (
        meta.find_undeclared_variables(tree)
        - (assigned - optional)
        - _MANAGED_VARIABLES
        - _TEMPLATE_FUNCTIONS
    )
    return frozenset(name for name in read if not name.endswith("_token"))


_TEMPLATE_FUNCTIONS = frozenset(
    {"raise_exception", "strftime_now", "namespace", "dict", "range", "caller"}
)
"""Functions that transformers gives to templates."""


def _json(value: Any) -> str:
    """As JSON, which but for null is an expression of Jinja's too."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _has_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_null, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_null, value))
    return value is None
