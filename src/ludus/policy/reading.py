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
_ANCHORS = ("open", "open_pattern", "close", "close_pattern")


def read_reply(
    tokenizer: PreTrainedTokenizerBase,
    response: Response,
    stops: Collection[int],
    prompt: Sequence[int],
    ids: Sequence[int],
    tools: Tools,
    *,
    named: str = "call",
) -> Message:
    """What was sampled, as a message. Nothing that a model can write raises.

    `named` begins the names of its calls, which differ from turn to turn.
    """
    ends = [_decoded(tokenizer, [stop]) for stop in stops]
    text = _decoded(tokenizer, ids)
    try:
        parts = _parsed(tokenizer, _loose(response), text, _decoded(tokenizer, prompt), None)
    except Exception:
        parts = {"content": [text]}
    calls = [
        call
        for region in parts.get("tool_calls", ())
        for call in _read_calls(tokenizer, response["fields"]["tool_calls"], region, ends, tools)
    ]
    words = [_without_ends(piece, ends) for piece in parts.get("content", ())]
    thought = parts.get("reasoning_content") or parts.get("thinking")
    return Message(
        role="assistant",
        content="\n".join(filter(None, words)),
        reasoning_content=_without_ends(thought, ends) if thought else None,
        tool_calls=tuple(Call(id=f"{named}_{at}", function=call) for at, call in enumerate(calls))
        or None,
    )


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _parsed(
    tokenizer: PreTrainedTokenizerBase, response: Response, text: str, prefix: str, tools: Tools
) -> dict[str, Any]:
    offered: Any = list(tools) if tools else None
    made: dict[str, Any] = tokenizer.parse_response(
        text, dict(response), prefix=prefix, tools=offered
    )
    return made


def _loose(response: Response) -> dict[str, Any]:
    """The same, with calls as raw text, and with all words: also those after a call."""
    fields = dict(response["fields"])
    fields["content"] = {**fields["content"], "repeats": True}
    if "tool_calls" in fields:
        of_calls = fields["tool_calls"]
        anchors = of_calls.get("open_pattern", "") + of_calls.get("close_pattern", "")
        names = {name: f"{{{name}}}" for name in _GROUP.findall(anchors)}
        kept = {key: of_calls[key] for key in _ANCHORS if key in of_calls}
        transform = {**names, "content": "{content}"}
        fields["tool_calls"] = {**kept, "repeats": True, "content": "text", "transform": transform}
    return {**response, "fields": fields}


def _read_calls(
    tokenizer: PreTrainedTokenizerBase,
    field: Mapping[str, Any],
    region: Mapping[str, str],
    ends: Sequence[str],
    tools: Tools,
) -> Iterator[Function]:
    """The calls in one region of a reply, usually one."""
    body = _without_ends(region["content"], ends)
    try:
        made = _calls_in(tokenizer, field, body, region, tools)
        yield from [_function(each) for each in made]
    except Exception:
        found = (pythonic.NAME if _is_pythonic(field) else _NAME).search(body)
        name = region.get("name") or (found[1] if found else "")
        yield Function(name=_writable(name), arguments=_writable(body))


def _calls_in(
    tokenizer: PreTrainedTokenizerBase,
    field: Mapping[str, Any],
    body: str,
    region: Mapping[str, str],
    tools: Tools,
) -> Sequence[Mapping[str, Any]]:
    if _is_pythonic(field):
        return pythonic.calls_in(body)
    if field.get("transform_each") and body.startswith("{"):
        body = f"[{body}]"  # One call alone, without the list around it.
    named = {f"{{{name}}}": word for name, word in region.items() if name != "content"}
    kept = {
        key: field[key] for key in ("content", "content_args", "transform_each") if key in field
    }
    alone = {**kept, "transform": _filled(field.get("transform", "{content}"), named)}
    schema = {"start_anchor_pattern": r"\Z", "fields": {"tool_calls": alone}}
    made = _parsed(tokenizer, schema, body or " ", "", tools)["tool_calls"]
    return made if isinstance(made, list) else [made]


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
