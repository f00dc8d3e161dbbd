"""Rows as `ludus curate` writes them: chat, tools, parallel calls, reasoning, system prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ludus.data.messages import Message
from ludus.policy.chat.chat_format import ChatFormat
from ludus.policy.chat.reply_parser import ReplyParser

Row = dict[str, Any]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "guess",
            "description": "Guess the word.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}},
                "required": ["word"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            },
        },
    },
]


def said(role: str, content: str, **more: Any) -> Row:
    return {"role": role, "content": content, **more}


def call(name: str, arguments: Any, identity: str = "call_1") -> Row:
    function = {"name": name, "arguments": arguments}
    return {"id": identity, "type": "function", "function": function}


def calling(*calls: Row, content: str = "", **more: Any) -> Row:
    return said("assistant", content, tool_calls=list(calls), **more)


def answer(content: str, identity: str = "call_1", name: str = "guess") -> Row:
    return said("tool", content, tool_call_id=identity, name=name)


TALK: Row = {
    "messages": [
        said("user", "What is 17 plus 25?"),
        said("assistant", "It is 42 — seven and five make zwölf."),
        said("user", "Sure?"),
        said("assistant", "Sure."),
    ]
}
INSTRUCTED: Row = {
    "messages": [said("system", "You are a careful player."), *TALK["messages"]],
}
PLAYED: Row = {
    "messages": [
        said("system", "Guess the secret word, one guess at a time."),
        said("user", "Begin."),
        calling(call("guess", {"word": "crane"}), reasoning_content="Vowels first."),
        answer("no"),
        calling(
            call("guess", {"word": "über"}, "call_2"),
            call("add", {"a": 1, "b": 2}, "call_3"),
            reasoning_content="Two at once.",
        ),
        answer("yes", "call_2"),
        answer("3", "call_3", "add"),
        said("assistant", "Found it.", reasoning_content="Done."),
        said("user", "Thanks."),
        said("assistant", "Gladly."),
    ],
    "tools": TOOLS,
}
ENDED: Row = {
    "messages": [
        said("user", "Add 1 and 2."),
        calling(call("add", {"a": 1, "b": 2}), content="I add them."),
    ],
    "tools": TOOLS,
}


def read(
    tokenizer: Any, chat_format: ChatFormat, prompt: Sequence[int], ids: Sequence[int], tools: Any
) -> Message:
    """Parse what a model has sampled after a prompt."""
    return ReplyParser(tokenizer, chat_format.response_template, chat_format.stop_token_ids)(
        prompt, ids, tools
    )
