"""A reply read back: words, thoughts and calls out of what a model sampled.

How a family writes them is data (`ludus.policy.responses`), which transformers' own parser applies,
in two steps: first the reply is cut into its parts, then each call is read by itself. So a call
that cannot be read costs nothing but itself: it stays a call, with its raw text for arguments, and
the loop can say what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ludus.data.messages import Call, Function, Message
from ludus.policy import pythonic

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Response = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]] | None

_GROUP = re.compile(r"\(\?P<(\w+)>")
_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
_KEYS = {"name", "arguments", "id", "type"}
REMEMBERED = 256
"""Prompts as text, and ways to write a call."""
_ANCHORS = ("open", "open_pattern", "close", "close_pattern")


class Reader:
    """Reads the replies of a model; how they are written is looked into once."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, response: Response, stops: Collection[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._ends = [self._text((stop,)) for stop in stops]
        self._parts = _loaded(_loose(response))
        self._calls = response.get("fields", {}).get("tool_calls", {})
        self._alone = lru_cache(REMEMBERED)(self._of_one_call)
        # Attempts at a task come together, and have the same prompt.
        self._prefix = lru_cache(REMEMBERED)(self._text)

    def __call__(
        self, prompt: Sequence[int], ids: Sequence[int], tools: Tools, *, named: str | None = None
    ) -> Message:
        """What was sampled, as a message. Nothing that a model can write raises.

        Of the prompt only what was written since the model last spoke is looked at. `named` begins
        the names of the calls, which differ from turn to turn.
        """
        named = f"call_{len(prompt)}" if named is None else named
        text = self._text(ids)
        try:
            parts = self._parsed(self._parts, text, self._prefix(tuple(prompt)), None)
        except Exception:
            parts = {"content": [text]}
        regions = parts.get("tool_calls", ())
        calls = [call for region in regions for call in self._calls_of(region, tools)]
        words = [_without_ends(piece, self._ends) for piece in parts.get("content", ())]
        thought = parts.get("reasoning_content") or parts.get("thinking")
        made = tuple(Call(id=f"{named}_{at}", function=call) for at, call in enumerate(calls))
        return Message(
            role="assistant",
            content="\n".join(filter(None, words)),
            # An empty thought, which a prompt may have written already, is none.
            reasoning_content=(_without_ends(thought, self._ends) or None) if thought else None,
            tool_calls=made or None,
        )

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _parsed(self, template: Any, text: str, prefix: str, tools: Tools) -> dict[str, Any]:
        offered: Any = list(tools) if tools else None
        made: dict[str, Any] = self._tokenizer.parse_response(
            text, template, prefix=prefix, tools=offered
        )
        return made

    def _calls_of(self, region: Mapping[str, str], tools: Tools) -> Iterator[Function]:
        """The calls in one region of a reply, usually one."""
        body = _without_ends(region["content"], self._ends)
        try:
            yield from [_function(each) for each in self._calls_in(body, region, tools)]
        except Exception:
            found = (pythonic.NAME if _is_pythonic(self._calls) else _NAME).search(body)
            name = region.get("name") or (found[1] if found else "")
            yield Function(name=_writable(name), arguments=_writable(body))

    def _calls_in(
        self, body: str, region: Mapping[str, str], tools: Tools
    ) -> Sequence[Mapping[str, Any]]:
        if _is_pythonic(self._calls):
            return pythonic.calls_in(body)
        if self._calls.get("transform_each") and body.startswith("{"):
            body = f"[{body}]"  # One call alone, without the list around it.
        named = tuple((name, word) for name, word in region.items() if name != "content")
        made = self._parsed(self._alone(named), body or " ", "", tools)["tool_calls"]
        return made if isinstance(made, list) else [made]

    def _of_one_call(self, named: tuple[tuple[str, str], ...]) -> Any:
        """How the body of a call is written, of which the opening has said these words."""
        field = self._calls
        kept = {
            key: field[key] for key in ("content", "content_args", "transform_each") if key in field
        }
        words = {f"{{{name}}}": word for name, word in named}
        alone = {**kept, "transform": _filled(field.get("transform", "{content}"), words)}
        return _loaded({"start_anchor_pattern": r"\Z", "fields": {"tool_calls": alone}})


def _loaded(template: dict[str, Any]) -> Any:
    """With its patterns compiled, where transformers can be given it so, and it is a good one."""
    try:
        from transformers.utils.chat_parsing.response_templates import load_response_template

        return load_response_template(template)
    except (ImportError, ValueError, TypeError, KeyError):
        return template


def _loose(response: Response) -> dict[str, Any]:
    """The same, with calls as raw text, and with all words: also those after a call."""
    fields = dict(response.get("fields", {}))
    fields["content"] = {**fields.get("content", {}), "repeats": True}
    if "tool_calls" in fields:
        of_calls = fields["tool_calls"]
        anchors = of_calls.get("open_pattern", "") + of_calls.get("close_pattern", "")
        names = {name: f"{{{name}}}" for name in _GROUP.findall(anchors)}
        kept = {key: of_calls[key] for key in _ANCHORS if key in of_calls}
        transform = {**names, "content": "{content}"}
        fields["tool_calls"] = {**kept, "repeats": True, "content": "text", "transform": transform}
    return {**response, "fields": fields}


def _is_pythonic(field: Mapping[str, Any]) -> bool:
    """Calls of which nothing is said but where they stand."""
    return field.get("content") == "text" and "transform" not in field


def _function(made: Mapping[str, Any]) -> Function:
    """A call that was read; raises where it is none."""
    function = made.get("function", made)
    if unknown := set(function) - _KEYS:
        raise ValueError(f"a call has no {min(unknown)!r}")
    name, arguments = function["name"], function.get("arguments", {})
    if not isinstance(name, str):
        raise TypeError("a tool's name is a string")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return Function(name=_writable(name), arguments=_writable(arguments))


def _filled(transform: Any, named: Mapping[str, str]) -> Any:
    """A transform with what the region's opening has said put in."""
    if isinstance(transform, Mapping):
        return {key: _filled(value, named) for key, value in transform.items()}
    return named.get(transform, transform) if isinstance(transform, str) else transform


def _without_ends(text: str, ends: Sequence[str]) -> str:
    text = text.strip()
    while any(end and text.endswith(end) for end in ends):
        text = next(text.removesuffix(end) for end in ends if end and text.endswith(end)).strip()
    return text


def _writable(text: str) -> str:
    """Without halves of characters, which JSON can name and UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
