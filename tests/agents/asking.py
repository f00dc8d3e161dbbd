"""Agents that ask a stub, and short ways to say what they are asked."""

from __future__ import annotations

import socket
from typing import Any

from chat_stub import Said, Stub

from ludus.agents.agent import EpisodeContext, Reply
from ludus.agents.anthropic import AnthropicAgent
from ludus.agents.api_agent import APIAgent
from ludus.agents.openai import OpenAIAgent
from ludus.agents.provider import Backoff
from ludus.data.content import Text
from ludus.data.messages import Call, Function, ImagePart, ImageUrl, Message
from ludus.data.tool_schema import ToolSpec

SECRET = "sk-very-secret-0123456789"
PIXEL = "data:image/png;base64,iVBORw0KGgo="
QUICK = Backoff(base=0.001, cap=0.01)

ANSWER = ToolSpec(
    name="answer",
    description="Submit the final answer.",
    input_schema={
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
    },
)


def openai(stub: Stub, **settings: Any) -> OpenAIAgent:
    return OpenAIAgent("m", endpoint=stub.url, **{"backoff": QUICK, **settings})


def anthropic(stub: Stub, **settings: Any) -> AnthropicAgent:
    return AnthropicAgent("m", endpoint=stub.url, **{"backoff": QUICK, **settings})


async def ask(
    agent: APIAgent, *messages: Message, member: int = 0, max_tokens: int | None = None
) -> Reply:
    """One reply of a new episode."""
    player = await agent.begin(EpisodeContext("here", (ANSWER,), member=member))
    return await player.act(messages or (user("What is 1 + 1 = ?"),), max_tokens=max_tokens)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def calling(arguments: str, *, identity: str = "c1", name: str = "answer") -> Message:
    call = Call(id=identity, function=Function(name=name, arguments=arguments))
    return Message(role="assistant", tool_calls=(call,))


def result(content: Any, *, identity: str = "c1") -> Message:
    return Message(role="tool", content=content, tool_call_id=identity)


def shown(text: str) -> tuple[Text, ImagePart]:
    return Text(text=text), ImagePart(image_url=ImageUrl(url=PIXEL))


def chat(message: Any, *, finish: str = "stop", **more: Any) -> Said:
    """A whole reply of the chat API around this message."""
    return Said(body={"choices": [{"message": message, "finish_reason": finish}], **more})


def refusing(status: int, message: str, *, code: Any = None, **headers: str) -> Said:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Said(status, {"error": {"message": message, "code": code}}, named)


def nobody() -> str:
    """An address of this machine at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"
