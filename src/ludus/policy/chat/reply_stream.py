"""Parse a reply while it is sampled: pieces of content and reasoning, and whole tool calls.

The pieces add up to the message of `ReplyParser`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.data.messages import Call
from ludus.policy.chat.reply_parser import ReplyParser, Tools

_REASONING_FIELDS = ("reasoning_content", "thinking")


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """A piece of a reply; one of its fields is set."""

    content: str = ""
    reasoning: str = ""
    call: Call | None = None


class ReplyStream:
    """Parses one reply; `feed` its text as it arrives, then `finish`."""

    def __init__(
        self, parser: ReplyParser, prompt: Sequence[int], tools: Tools, call_id_prefix: str
    ) -> None:
        self._reply_parser, self._tools = parser, tools
        self._call_id_prefix = call_id_prefix
        self._num_calls = 0
        self._white_space: dict[str, str] = {}
        """By field that has text: white space that is written once more text follows."""
        self._in_part: set[str] = set()
        """Fields whose current part has text."""
        self._parser: Any = None
        # A template that transformers cannot use for streaming: all text is content.
        try:
            from transformers.utils.chat_parsing.response_parser import ResponseParser

            prefix = parser.decode_prompt(tuple(prompt))
            self._parser = ResponseParser(parser.reply_template, prefix=prefix)
        except Exception:
            self._parser = None

    def feed(self, text: str) -> list[ReplyDelta]:
        """Parse more text; never raises, whatever the model has written."""
        if self._parser is not None:
            try:
                return self._to_deltas(self._parser.feed(text))
            except Exception:
                self._parser = None
        return list(self._write("content", text))

    def finish(self) -> list[ReplyDelta]:
        """Parse what was held back because more text could have changed it."""
        if self._parser is None:
            return []
        try:
            _, events = self._parser.finalize()
            return self._to_deltas(events)
        except Exception:
            return []

    def _to_deltas(self, events: Sequence[Mapping[str, Any]]) -> list[ReplyDelta]:
        deltas: list[ReplyDelta] = []
        for event in events:
            name, kind = event["field"], event["type"]
            if name == "tool_calls":
                if kind == "region_close":
                    deltas += self._parse_calls(event["value"])
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

    def _parse_calls(self, region: Mapping[str, str]) -> Iterator[ReplyDelta]:
        for function in self._reply_parser.parse_calls(region, self._tools):
            call = Call(id=f"{self._call_id_prefix}_{self._num_calls}", function=function)
            self._num_calls += 1
            yield ReplyDelta(call=call)
