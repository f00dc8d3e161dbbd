"""Parse sampled replies into messages: content, reasoning and tool calls.

A response template describes how the family writes them; the parser of transformers applies it in
two passes. The first one splits the reply into its parts, the second one parses each call on its
own. So a malformed call does not spoil the rest: it becomes a call with its raw text as arguments,
and the rollout loop can tell the model what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ludus.data.messages import Call, Function, Message
from ludus.data.tool_schema import JsonObject
from ludus.policy.chat.encoding import Tools
from ludus.policy.chat.response_templates import TAGGED_CALLS

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase
    from transformers.utils.chat_parsing.response_parser import ResponseParser

_NAMED_GROUP = re.compile(r"\(\?P<(\w+)>")
_JSON_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
_CALL_KEYS = {"name", "arguments", "id", "type"}
CACHE_SIZE = 256
"""Number of decoded prompts, and of call templates, that are cached."""
_REASONING_FIELDS = ("reasoning_content", "thinking")
_PLAIN_CALL = re.compile(r"([^<]*)<tool_call>([^<]*)</tool_call>(.*)", re.DOTALL)
_ANCHOR_KEYS = ("open", "open_pattern", "close", "close_pattern")


class ReplyParser:
    """Parses the replies of one model. The response template is compiled once."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        response_template: JsonObject,
        stop_token_ids: Collection[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_texts = [self._decode((token_id,)) for token_id in stop_token_ids]
        self.reply_template = _compile_template(_raw_reply_template(response_template))
        """Splits a reply into its parts, with each call as raw text."""
        self._calls_field = response_template.get("fields", {}).get("tool_calls", {})
        self._has_tagged_calls = self._calls_field == TAGGED_CALLS
        anchor = response_template.get("start_anchor_pattern", r"\b\B")
        self._anchor = re.compile(rf"(?:{anchor})\Z")
        self._starts_reply = lru_cache(CACHE_SIZE)(self._ends_with_anchor)
        self._call_template = lru_cache(CACHE_SIZE)(self._build_call_template)
        # Attempts at a task have the same prompt and start close together.
        self.decode_prompt = lru_cache(CACHE_SIZE)(self._decode)

    def __call__(
        self,
        prompt: Sequence[int],
        ids: Sequence[int],
        tools: Tools,
        *,
        call_id_prefix: str | None = None,
    ) -> Message:
        """Parse the sampled ids. Never raises.

        Args:
            prompt: At least the ids between the previous reply and this one.
            call_id_prefix: Prefix of the call ids; must differ from turn to turn.
        """
        call_id_prefix = f"call_{len(prompt)}" if call_id_prefix is None else call_id_prefix
        return self.parse_text(prompt, self._decode(ids), tools, call_id_prefix=call_id_prefix)

    def parse_text(
        self, prompt: Sequence[int], text: str, tools: Tools, *, call_id_prefix: str
    ) -> Message:
        """Parse a reply that is text already, as `__call__` does."""
        functions: list[Function] = []
        if (split := self._split_plain_call(prompt, text)) is not None:
            parts: JsonObject = {"content": [split[0]]}
            functions = [split[1]]
        else:
            try:
                prefix = self.decode_prompt(tuple(prompt))
                parts = self._parse(self.reply_template, text, prefix, None)
            except Exception:
                parts = {"content": [text]}
            for region in parts.get("tool_calls", ()):
                functions += self.parse_calls(region, tools)
        contents = [_strip_stops(piece, self._stop_texts) for piece in parts.get("content", ())]
        reasoning = parts.get("reasoning_content") or parts.get("thinking") or ""
        calls = tuple(
            Call(id=f"{call_id_prefix}_{index}", function=function)
            for index, function in enumerate(functions)
        )
        return Message(
            role="assistant",
            content="\n".join(filter(None, contents)),
            # Empty reasoning, which the prompt may have prefilled, counts as none.
            reasoning_content=_strip_stops(reasoning, self._stop_texts) or None,
            tool_calls=calls or None,
        )

    def _split_plain_call(self, prompt: Sequence[int], text: str) -> tuple[str, Function] | None:
        """The text before the only call of a reply, and the call, if they are that simple.

        Nearly all replies of a trained model are, and the parser takes ten times as long.
        """
        if not self._has_tagged_calls or (match := _PLAIN_CALL.fullmatch(text)) is None:
            return None
        content, body, rest = match.groups()
        if _strip_stops(rest, self._stop_texts) or not self._starts_reply(tuple(prompt)):
            return None
        try:
            call = json.loads(body)
            function = _build_function({"function": call}) if isinstance(call, dict) else None
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return None if function is None else (content, function)

    def _ends_with_anchor(self, prompt: tuple[int, ...]) -> bool:
        """Whether a reply begins behind this prompt, with nothing of it in the prompt."""
        return self._anchor.search(self.decode_prompt(prompt)) is not None

    def _decode(self, ids: Sequence[int]) -> str:
        # `tokenizer.decode` calls the same, after a slow check of each id.
        backend: Tokenizer = self._tokenizer.backend_tokenizer
        return str(backend.decode(ids, skip_special_tokens=False))

    def _parse(self, template: JsonObject, text: str, prefix: str, tools: Tools) -> JsonObject:
        parts: JsonObject = self._tokenizer.parse_response(
            text, template, prefix=prefix, tools=list(tools) if tools else None
        )
        return parts

    def parse_calls(self, region: Mapping[str, str], tools: Tools) -> Iterator[Function]:
        """Parse one region with calls, usually a single one."""
        body = _strip_stops(region["content"], self._stop_texts)
        try:
            # In a format with a list of calls, a single one may come without the list.
            is_bare = self._calls_field.get("transform_each") and body.startswith("{")
            text = f"[{body}]" if is_bare else body or " "
            groups = tuple((name, value) for name, value in region.items() if name != "content")
            calls = self._parse(self._call_template(groups), text, "", tools)["tool_calls"]
            yield from [
                _build_function(call) for call in (calls if isinstance(calls, list) else [calls])
            ]
        except Exception:
            match = _JSON_NAME.search(body)
            name = region.get("name") or (match[1] if match else "")
            yield _encodable_function(name, body)

    def _build_call_template(self, groups: tuple[tuple[str, str], ...]) -> JsonObject:
        """Build the template of a call's body, given the named groups of its opening."""
        field = self._calls_field
        parsing = {
            key: field[key] for key in ("content", "content_args", "transform_each") if key in field
        }
        values = {f"{{{name}}}": value for name, value in groups}
        transform = _fill_call_transform(field.get("transform", "{content}"), values)
        fields = {"tool_calls": {**parsing, "transform": transform}}
        return _compile_template({"start_anchor_pattern": r"\Z", "fields": fields})


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """A piece of a reply; one of its fields is set."""

    content: str = ""
    reasoning: str = ""
    call: Call | None = None


class ReplyStream:
    """Parses one reply while it is sampled; `feed` its text as it arrives, then `finish`.

    Calls are parsed when they are complete. The pieces add up to the message of `ReplyParser`.
    """

    def __init__(
        self, parser: ReplyParser, prompt: Sequence[int], tools: Tools, call_id_prefix: str
    ) -> None:
        self._reply_parser, self._tools = parser, tools
        self._call_id_prefix = call_id_prefix
        self._num_calls = 0
        self._white_space: dict[str, str] = {}
        """White space held back until more text follows, by field."""
        self._in_part: set[str] = set()
        """Fields whose current part has text."""
        from transformers.utils.chat_parsing.response_parser import ResponseParser

        prefix = parser.decode_prompt(tuple(prompt))
        self._parser: ResponseParser | None = ResponseParser(parser.reply_template, prefix=prefix)

    def feed(self, text: str) -> list[ReplyDelta]:
        """Parse more text; never raises."""
        if self._parser is not None:
            try:
                return self._to_deltas(self._parser.feed(text))
            except Exception:
                self._parser = None
        return list(self._write("content", text))

    def finish(self) -> list[ReplyDelta]:
        """Parse the text held back until now because more could have changed it."""
        if self._parser is None:
            return []
        try:
            _, events = self._parser.finalize()
            return self._to_deltas(events)
        except Exception:
            return []

    def _to_deltas(self, events: Sequence[JsonObject]) -> list[ReplyDelta]:
        deltas: list[ReplyDelta] = []
        for event in events:
            name, kind = event["field"], event["type"]
            if name == "tool_calls":
                if kind == "region_close":
                    for function in self._reply_parser.parse_calls(event["value"], self._tools):
                        call_id = f"{self._call_id_prefix}_{self._num_calls}"
                        self._num_calls += 1
                        deltas.append(ReplyDelta(call=Call(id=call_id, function=function)))
            elif kind == "region_chunk":
                deltas += self._write(name, event["text"])
            elif kind == "region_close" and name in self._in_part:
                self._in_part.remove(name)
                self._white_space[name] = "\n"  # Between this part of the field and the next.
        return deltas

    def _write(self, name: str, text: str) -> Iterator[ReplyDelta]:
        """Write text without white space at the beginning and the end of its part."""
        if name not in self._in_part:
            text = text.lstrip()
        body = text.rstrip()
        held = self._white_space.get(name, "")
        if not body:
            if name in self._in_part:
                self._white_space[name] = held + text
            return
        self._in_part.add(name)
        self._white_space[name] = text[len(body) :]
        piece = held + body
        yield ReplyDelta(reasoning=piece) if name in _REASONING_FIELDS else ReplyDelta(piece)


def _compile_template(template: JsonObject) -> JsonObject:
    """Compile the patterns; keep an invalid template as it is."""
    from transformers.utils.chat_parsing.response_templates import load_response_template

    try:
        compiled: JsonObject = load_response_template(template)
    except (ValueError, TypeError, KeyError):
        return template
    return compiled


def _raw_reply_template(response_template: JsonObject) -> JsonObject:
    """Build the template that splits a reply: calls stay raw text, and all content is collected."""
    fields = dict(response_template.get("fields", {}))
    fields["content"] = {**fields.get("content", {}), "repeats": True}
    if "tool_calls" in fields:
        calls = fields["tool_calls"]
        anchors = calls.get("open_pattern", "") + calls.get("close_pattern", "")
        groups = {name: f"{{{name}}}" for name in _NAMED_GROUP.findall(anchors)}
        fields["tool_calls"] = {
            **{key: calls[key] for key in _ANCHOR_KEYS if key in calls},
            "repeats": True,
            "content": "text",
            "transform": {**groups, "content": "{content}"},
        }
    return {**response_template, "fields": fields}


def _build_function(call: JsonObject) -> Function:
    """Build the function of a parsed call; raise if it is not one."""
    function = call.get("function", call)
    if unknown := set(function) - _CALL_KEYS:
        raise ValueError(f"unknown field {min(unknown)!r} in a call")
    name, arguments = function["name"], function.get("arguments", {})
    if not isinstance(name, str):
        raise TypeError("the name of a tool must be a string")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return _encodable_function(name, arguments)


def _encodable_function(name: str, arguments: str) -> Function:
    """Build the function of a call in a reply; replace lone surrogates, which UTF-8 cannot encode.

    A model can write them as JSON escapes.
    """
    name, arguments = (text.encode("utf-8", "replace").decode() for text in (name, arguments))
    return Function(name=name, arguments=arguments)


def _fill_call_transform(transform: object, values: Mapping[str, str]) -> object:
    """Replace the placeholders in a call's transform by what the parser has matched."""
    if isinstance(transform, Mapping):
        return {key: _fill_call_transform(value, values) for key, value in transform.items()}
    return values.get(transform, transform) if isinstance(transform, str) else transform


def _strip_stops(text: str, stop_texts: Sequence[str]) -> str:
    """Strip white space and stop tokens from the end."""
    text = text.strip()
    while stop := next((stop for stop in stop_texts if stop and text.endswith(stop)), None):
        text = text.removesuffix(stop).strip()
    return text
