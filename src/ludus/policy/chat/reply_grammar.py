"""Grammars of replies: JSON of a schema, or a call of a tool, as the chat template writes them.

How the template writes them is read off what it renders. A template whose calls have no JSON object
for the arguments, such as one with an element for each, has no grammar for calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ludus.data.tool_schema import JsonObject
from ludus.errors import TemplateRefused
from ludus.policy.chat.rendering import render_text, rendered_prompt_length

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ludus.policy.chat.chat_format import ChatFormat

Body = tuple[str, str, str]
"""The text before a JSON value, its schema as JSON, and the text behind it."""
Thinking = Literal["no", "may start", "has started"]

_NAME, _CONTENT = "name_of_the_tool", "content of the reply"
_ARGUMENTS = re.compile(r'\{\s*"key"\s*:\s*17\s*\}')
_QUESTION = {"role": "user", "content": "What is it?"}
_TOOL_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_ANY_TEXT = r"/(.|\n)*/"
_NUM_PROMPT_TOKENS = 16
"""Tokens of a prompt's end that tell whether it has started a thought."""


@dataclass(frozen=True, slots=True)
class ReplyShape:
    """The texts around what a model writes, in its chat format."""

    before_content: str
    call: tuple[str, str, str] | None
    """Before the name of a tool, between name and arguments, and behind them; None if unknown."""
    has_thoughts: bool
    """Whether reasoning may come first, between <think> and </think>."""

    def thinking_after(self, tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> Thinking:
        """Whether a reply to this prompt thinks; models that do have a token for <think>."""
        end = str(tokenizer.decode(list(prompt[-_NUM_PROMPT_TOKENS:]))).rstrip()
        if not self.has_thoughts or end.endswith("</think>"):
            return "no"
        if end.endswith("<think>"):
            return "has started"
        return "may start" if "<think>" in tokenizer.get_vocab() else "no"

    def bodies(
        self, schema: JsonObject | None, functions: Sequence[Mapping[str, Any]]
    ) -> tuple[Body, ...]:
        """JSON of the schema, if there is one, or a call of one of the functions.

        Raises `ValueError` for calls that there is no grammar for.
        """
        content = [] if schema is None else [(self.before_content, json.dumps(schema), "")]
        if content and functions and self.call is not None and self.call[0].startswith("{"):
            raise ValueError(
                "this model's chat template writes a call as bare JSON, which cannot be told from "
                "the format of the content: use a tool_choice other than auto"
            )
        return (*content, *map(self._call_body, functions))

    def _call_body(self, function: Mapping[str, Any]) -> Body:
        name = str(function["name"])
        if self.call is None:
            raise ValueError("how this model's chat template writes tool calls is not known")
        if not _TOOL_NAME.fullmatch(name):
            raise ValueError(f"a tool's name must have up to 64 of A-Za-z0-9_.-, got {name!r:.100}")
        # Without `parameters`, the tool takes none.
        schema = function.get("parameters") or {"properties": {}, "additionalProperties": False}
        before, between, behind = self.call
        return before + name + between, json.dumps({"type": "object", **schema}), behind


def read_reply_shape(tokenizer: PreTrainedTokenizerBase, chat_format: ChatFormat) -> ReplyShape:
    """Render a reply and a call, and find the texts around them."""
    stops = [str(tokenizer.decode([token_id])) for token_id in chat_format.stop_token_ids]
    fields = chat_format.response_template["fields"]
    reply = _render_reply(tokenizer, chat_format.template, {"content": _CONTENT}, None)
    thoughts: Any = fields.get("reasoning_content") or fields.get("thinking") or {}
    call = None
    if "tool_calls" in fields:
        function = {"name": _NAME, "arguments": {"key": 17}}
        message = {
            "content": "",
            "tool_calls": [{"id": "call00001", "type": "function", "function": function}],
        }
        parameters = {"type": "object", "properties": {"key": {"type": "integer"}}}
        tool = {"name": _NAME, "description": "Finds it.", "parameters": parameters}
        tools = [{"type": "function", "function": tool}]
        written = _render_reply(tokenizer, chat_format.template, message, tools)
        arguments = _ARGUMENTS.search(written)
        if arguments is not None and written[: arguments.start()].count(_NAME) == 1:
            before, _, between = written[: arguments.start()].partition(_NAME)
            behind = written[arguments.end() :]
            ends = [behind.index(stop) for stop in stops if stop and stop in behind]
            call = before, between, behind[: min(ends, default=len(behind))].rstrip()
    return ReplyShape(
        before_content=reply.partition(_CONTENT)[0],
        call=call,
        has_thoughts="</think>" in str(thoughts.get("close_pattern", thoughts.get("close", ""))),
    )


def _render_reply(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    message: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] | None,
) -> str:
    """The text of a reply, without empty thoughts; empty if the template refuses it."""
    messages = [_QUESTION, {"role": "assistant", **message}]
    try:
        prompt = render_text(tokenizer, messages[:1], tools, template, add_generation_prompt=True)
        whole = render_text(tokenizer, messages, tools, template)
    except TemplateRefused:
        return ""
    reply = whole[rendered_prompt_length(prompt, whole) :]
    return reply.rpartition("</think>")[2].lstrip()


@dataclass(frozen=True, slots=True)
class ReplyGrammar:
    """The source of a grammar: a thought first, if there is one, then one of the bodies."""

    thinking: Thinking
    bodies: tuple[Body, ...]

    @property
    def schemas(self) -> list[str]:
        return [schema for _, schema, _ in self.bodies]

    def to_lark(self, special_ids: Mapping[str, int]) -> str:
        def literal(text: str) -> str:
            """Terminals for a text, in which special tokens are written by their ids."""
            names = sorted(special_ids, key=len, reverse=True)
            pieces = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
            return " ".join(
                f"<[{special_ids[piece]}]>" if piece in special_ids else json.dumps(piece)
                for piece in pieces
                if piece
            )

        bodies = [
            f"{literal(before)} json_{index} {literal(behind)}"
            for index, (before, _, behind) in enumerate(self.bodies)
        ]
        thought = {
            "no": "",
            "has started": "thought",
            "may start": f"({literal('<think>')} thought)?",
        }[self.thinking]
        rules = [f"start: {thought} SPACE ({' | '.join(bodies)})", r"SPACE: /[ \n]{0,4}/"]
        if thought and "</think>" in special_ids:
            rules += [f"thought: TEXT {literal('</think>')}", f"TEXT: {_ANY_TEXT}"]
        elif thought:
            rules += [r"thought[lazy]: /(.|\n)*<\/think>/"]
        return "\n".join(rules)
