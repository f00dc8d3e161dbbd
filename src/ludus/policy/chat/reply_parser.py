"""A reply read back: words, thoughts and calls out of what a model sampled.

How a family writes them is data (`ludus.policy.chat.response_templates`), which transformers' own parser applies,
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
from ludus.policy.chat import pythonic_calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ResponseTemplate = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]] | None

_NAMED_GROUP = re.compile(r"\(\?P<(\w+)>")
_JSON_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
_CALL_KEYS = {"name", "arguments", "id", "type"}
CACHE_SIZE = 256
"""Prompts as text, and ways to write a call."""
_ANCHOR_KEYS = ("open", "open_pattern", "close", "close_pattern")


class ReplyParser:
    """Reads the replies of a model; how they are written is looked into once."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, response: ResponseTemplate, stops: Collection[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_texts = [self._decode((stop,)) for stop in stops]
        self._reply_template = _compile_template(_with_raw_calls(response))
        self._calls_field = response.get("fields", {}).get("tool_calls", {})
        self._call_template = lru_cache(CACHE_SIZE)(self._build_call_template)
        # Attempts at a task come together, and have the same prompt.
        self._decode_prompt = lru_cache(CACHE_SIZE)(self._decode)

    def __call__(
        self,
        prompt: Sequence[int],
        ids: Sequence[int],
        tools: Tools,
        *,
        call_id_prefix: str | None = None,
    ) -> Message:
        """What was sampled, as a message. Nothing that a model can write raises.

        Of the prompt only what was written since the model last spoke is looked at. `named` begins
        the names of the calls, which differ from turn to turn.
        """
        call_id_prefix = f"call_{len(prompt)}" if call_id_prefix is None else call_id_prefix
        text = self._decode(ids)
        try:
            parts = self._parse(
                self._reply_template, text, self._decode_prompt(tuple(prompt)), None
            )
        except Exception:
            parts = {"content": [text]}
        regions = parts.get("tool_calls", ())
        calls = [call for region in regions for call in self._parse_region(region, tools)]
        words = [_strip_stops(piece, self._stop_texts) for piece in parts.get("content", ())]
        thought = parts.get("reasoning_content") or parts.get("thinking")
        made = tuple(
            Call(id=f"{call_id_prefix}_{at}", function=call) for at, call in enumerate(calls)
        )
        return Message(
            role="assistant",
            content="\n".join(filter(None, words)),
            # An empty thought, which a prompt may have written already, is none.
            reasoning_content=(_strip_stops(thought, self._stop_texts) or None)
            if thought
            else None,
            tool_calls=made or None,
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _parse(self, template: Any, text: str, prefix: str, tools: Tools) -> dict[str, Any]:
        offered: Any = list(tools) if tools else None
        made: dict[str, Any] = self._tokenizer.parse_response(
            text, template, prefix=prefix, tools=offered
        )
        return made

    def _parse_region(self, region: Mapping[str, str], tools: Tools) -> Iterator[Function]:
        """The calls in one region of a reply, usually one."""
        body = _strip_stops(region["content"], self._stop_texts)
        try:
            yield from [_build_function(each) for each in self._parse_calls(body, region, tools)]
        except Exception:
            found = (
                pythonic_calls.FIRST_CALL_NAME if _is_pythonic(self._calls_field) else _JSON_NAME
            ).search(body)
            name = region.get("name") or (found[1] if found else "")
            yield Function(name=_replace_surrogates(name), arguments=_replace_surrogates(body))

    def _parse_calls(
        self, body: str, region: Mapping[str, str], tools: Tools
    ) -> Sequence[Mapping[str, Any]]:
        if _is_pythonic(self._calls_field):
            return pythonic_calls.parse_calls(body)
        if self._calls_field.get("transform_each") and body.startswith("{"):
            body = f"[{body}]"  # One call alone, without the list around it.
        named = tuple((name, word) for name, word in region.items() if name != "content")
        made = self._parse(self._call_template(named), body or " ", "", tools)["tool_calls"]
        return made if isinstance(made, list) else [made]

    def _build_call_template(self, named: tuple[tuple[str, str], ...]) -> Any:
        """How the body of a call is written, of which the opening has said these words."""
        field = self._calls_field
        kept = {
            key: field[key] for key in ("content", "content_args", "transform_each") if key in field
        }
        words = {f"{{{name}}}": word for name, word in named}
        alone = {**kept, "transform": _fill_transform(field.get("transform", "{content}"), words)}
        return _compile_template({"start_anchor_pattern": r"\Z", "fields": {"tool_calls": alone}})


def _compile_template(template: dict[str, Any]) -> Any:
    """With its patterns compiled, where transformers can be given it so, and it is a good one."""
    try:
        from transformers.utils.chat_parsing.response_templates import load_response_template

        return load_response_template(template)
    except (ImportError, ValueError, TypeError, KeyError):
        return template


def _with_raw_calls(response: ResponseTemplate) -> dict[str, Any]:
    """The same, with calls as raw text, and with all words: also those after a call."""
    fields = dict(response.get("fields", {}))
    fields["content"] = {**fields.get("content", {}), "repeats": True}
    if "tool_calls" in fields:
        of_calls = fields["tool_calls"]
        anchors = of_calls.get("open_pattern", "") + of_calls.get("close_pattern", "")
        names = {name: f"{{{name}}}" for name in _NAMED_GROUP.findall(anchors)}
        kept = {key: of_calls[key] for key in _ANCHOR_KEYS if key in of_calls}
        transform = {**names, "content": "{content}"}
        fields["tool_calls"] = {**kept, "repeats": True, "content": "text", "transform": transform}
    return {**response, "fields": fields}


def _is_pythonic(field: Mapping[str, Any]) -> bool:
    """Calls of which nothing is said but where they stand."""
    return field.get("content") == "text" and "transform" not in field


def _build_function(made: Mapping[str, Any]) -> Function:
    """A call that was read; raises where it is none."""
    function = made.get("function", made)
    if unknown := set(function) - _CALL_KEYS:
        raise ValueError(f"a call has no {min(unknown)!r}")
    name, arguments = function["name"], function.get("arguments", {})
    if not isinstance(name, str):
        raise TypeError("a tool's name is a string")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return Function(name=_replace_surrogates(name), arguments=_replace_surrogates(arguments))


def _fill_transform(transform: Any, named: Mapping[str, str]) -> Any:
    """A transform with what the region's opening has said put in."""
    if isinstance(transform, Mapping):
        return {key: _fill_transform(value, named) for key, value in transform.items()}
    return named.get(transform, transform) if isinstance(transform, str) else transform


def _strip_stops(text: str, ends: Sequence[str]) -> str:
    text = text.strip()
    while any(end and text.endswith(end) for end in ends):
        text = next(text.removesuffix(end) for end in ends if end and text.endswith(end)).strip()
    return text


def _replace_surrogates(text: str) -> str:
    """Without halves of characters, which JSON can name and UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
