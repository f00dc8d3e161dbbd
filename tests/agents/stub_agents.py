"""Agents of the stub server, and short constructors of messages and responses."""

from __future__ import annotations

import socket
from typing import Any

from chat_stub import Said, Stub

from ludus.agents.agent import EpisodeContext, Reply
from ludus.agents.anthropic import AnthropicAgent
from ludus.agents.api_agent import APIAgent
from ludus.agents.openai import OpenAIAgent
from ludus.agents.provider import Backoff
from ludus.data.messages import Call, Function, ImagePart, ImageUrl, Message, Text
from ludus.data.tool_schema import ToolSpec

SECRET = "sk-very-secret-0123456789"
PIXEL = "data:image/png;base64,iVBORw0KGgo="
FAST_BACKOFF = Backoff(base=0.001, cap=0.01)

ANSWER = ToolSpec(
    name="answer",
    description="Submit the final answer.",
    input_schema={
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
    },
)


def openai_agent(stub: Stub, **options: Any) -> OpenAIAgent:
    return OpenAIAgent("m", endpoint=stub.url, **{"backoff": FAST_BACKOFF, **options})


def anthropic_agent(stub: Stub, **options: Any) -> AnthropicAgent:
    return AnthropicAgent("m", endpoint=stub.url, **{"backoff": FAST_BACKOFF, **options})


async def ask(
    agent: APIAgent, *messages: Message, member: int = 0, max_tokens: int | None = None
) -> Reply:
    """The first reply of a new episode."""
    player = await agent.begin(EpisodeContext("here", (ANSWER,), member=member))
    return await player.act(messages or (user_message("What is 1 + 1 = ?"),), max_tokens=max_tokens)


def user_message(text: str) -> Message:
    return Message(role="user", content=text)


def call_message(arguments: str, *, call_id: str = "c1", name: str = "answer") -> Message:
    call = Call(id=call_id, function=Function(name=name, arguments=arguments))
    return Message(role="assistant", tool_calls=(call,))


def tool_message(content: Any, *, call_id: str = "c1") -> Message:
    return Message(role="tool", content=content, tool_call_id=call_id)


def text_and_image(text: str) -> tuple[Text, ImagePart]:
    return Text(text=text), ImagePart(image_url=ImageUrl(url=PIXEL))


def chat_response(message: Any, *, finish: str = "stop", **fields: Any) -> Said:
    """A response of the chat API with this message."""
    return Said(body={"choices": [{"message": message, "finish_reason": finish}], **fields})


def error_response(status: int, message: str, *, code: Any = None, **headers: str) -> Said:
    http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return Said(status, {"error": {"message": message, "code": code}}, http_headers)


def unused_url() -> str:
    """A URL of this machine where no server listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"
