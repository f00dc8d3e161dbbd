"""A real local server that speaks OpenAI's and Anthropic's chat APIs, and fails on request.

    python tests/chat_stub.py --port 8123 --latency 0.2 --fail 0.3 --seed 1

Replies are a pure function of the request, so that two runs over the same tasks give the same
episodes. Faults are drawn per arrival, so that a request which fails may succeed when it is
repeated. Raw ASGI: it is also the other end of benchmarks.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import re
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

Json = dict[str, Any]
Reply = Callable[[Json], Json]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

FAULTS = ("429", "429 with a wait", "500", "cut", "hang")
_DRAWN = ("429", "429 with a wait", "500", "500", "cut", "cut", "hang", "hang")
_SUM = re.compile(r"-?\d+(?:\s*[+-]\s*\d+)*(?=\s*=)")
_WORDS = ("crane", "slate", "moist", "pound", "light", "brick", "jumpy", "fever", "whale", "axiom")


@dataclass(frozen=True)
class Said:
    """An answer of a script, as it stands. A `body` that is not bytes is sent as JSON."""

    status: int = 200
    body: Any = b""
    headers: Json = field(default_factory=dict)


Step = Said | int | str
"""An answer, a bare status, one of FAULTS, or "reply": what would have been said anyway."""


@dataclass
class Stub:
    """How it answers, and what it was asked."""

    reply: Reply
    latency: float = 0.0
    fail: float = 0.0
    seed: int = 0
    key: str | None = None
    script: deque[Step] = field(default_factory=deque)
    """What the next requests get, in order; when it is used up, replies again."""
    models: Step = "reply"
    """What the list of models gets."""
    url: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    """How requests were answered: by status or by fault."""
    bodies: deque[Json] = field(default_factory=lambda: deque(maxlen=1000))
    headers: deque[Json] = field(default_factory=lambda: deque(maxlen=1000))
    paths: deque[str] = field(default_factory=lambda: deque(maxlen=1000))
    arrivals: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    first_request: float | None = None
    last_reply: float | None = None
    replies: int = 0
    under_way: int = 0
    held: bool = False
    """While it is set, requests that have arrived wait for their replies."""
    peak: int = 0
    """The most requests that were under way at once."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    async def __call__(self, scope: Json, receive: Receive, send: Send) -> None:
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        try:
            await self._serve(scope, receive, send)
        finally:
            self.under_way -= 1

    async def _serve(self, scope: Json, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = await _read(receive)
        if scope["path"].startswith("/stub/"):
            await _send(send, Said(body=self._clocked(scope["path"])))
            return
        request = json.loads(body) if body else {}
        if scope["path"].endswith("/models"):
            step = self.models
        else:
            self.arrivals.append(time.monotonic())
            self.first_request = self.first_request or self.arrivals[-1]
            self.paths.append(scope["path"])
            self.headers.append(headers)
            self.bodies.append(request)
            step = self._step()
            if self.latency:
                await asyncio.sleep(self.latency)
            # Not an event of this loop, because another thread sets it.
            while self.held:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if not self._welcome(headers):
            step = Said(401, _error("Incorrect API key provided: " + _given(headers)))
        await self._answer(step, scope["path"], request, receive, send)

    def _clocked(self, path: str) -> Json:
        """For benchmarks: /stub/times tells when it was busy, /stub/clear forgets it."""
        told = {
            "replies": self.replies,
            "first_request": self.first_request,
            "last_reply": self.last_reply,
        }
        if path == "/stub/clear":
            self.replies, self.first_request, self.last_reply = 0, None, None
        return told

    def _step(self) -> Step:
        if self.script:
            return self.script.popleft()
        if self.fail and self._chance.random() < self.fail:
            return self._chance.choice(_DRAWN)
        return "reply"

    def _welcome(self, headers: Json) -> bool:
        return self.key is None or _given(headers) == self.key

    async def _answer(
        self, step: Step, path: str, request: Json, receive: Receive, send: Send
    ) -> None:
        if step == "hang":
            self.counts["hang"] += 1
            await receive()
        elif step == "cut":
            self.counts["cut"] += 1
            await _start(send, 200, {"content-length": "100"})
            await send({"type": "http.response.body", "body": b'{"id": "', "more_body": True})
        else:
            said = self._said(step, path, request)
            self.counts[str(said.status)] += 1
            await _send(send, said)
            if not path.endswith("/models"):
                self.replies, self.last_reply = self.replies + 1, time.monotonic()

    def _said(self, step: Step, path: str, request: Json) -> Said:
        if isinstance(step, Said):
            return step
        if step == "429 with a wait":
            return Said(429, _error("Slow down."), {"retry-after": "0.05"})
        if step != "reply":
            return Said(int(step), _error(f"Told to answer {step}."))
        if path.endswith("/models"):
            return Said(body={"object": "list", "data": []})
        message = self.reply(request)
        form = as_anthropic if path.endswith("/messages") else as_openai
        return Said(body=form(request, message))


def as_openai(request: Json, message: Json) -> Json:
    calls = message.get("tool_calls")
    return {
        "id": f"chatcmpl-{len(request['messages'])}",
        "object": "chat.completion",
        "model": request["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, **message},
                "finish_reason": "tool_calls" if calls else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": _tokens(request["messages"]),
            "completion_tokens": _tokens(message),
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def as_anthropic(request: Json, message: Json) -> Json:
    """The message in blocks, or the blocks themselves where its content is a list."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else _blocks(message)
    calls = any(block["type"] == "tool_use" for block in blocks)
    return {
        "id": f"msg_{_digest(request)[:12]}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": blocks,
        "stop_reason": "tool_use" if calls else "end_turn",
        "usage": {
            "input_tokens": _tokens(request["messages"]),
            "output_tokens": _tokens(message),
        },
    }


def _blocks(message: Json) -> list[Json]:
    text = message.get("content")
    blocks: list[Json] = [{"type": "text", "text": text}] if text else []
    for call in message.get("tool_calls", ()):
        given = json.loads(call["function"]["arguments"])
        name = call["function"]["name"]
        blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": given})
    return blocks


def sensible(request: Json) -> Json:
    """The default reply: the tool that is offered, called as a middling player would.

    Sums are added up, wrongly for about a fifth of the questions; words are guessed by a hash of
    all that was said so far.
    """
    tools = dict(_tools(request))
    if not tools:
        return {"content": f"I was told {_tokens(request['messages'])} tokens."}
    question = _question(request)
    if "answer" in tools and (problem := _SUM.search(question)):
        return _calling("answer", {"answer": str(_sum(problem.group(), question))}, request)
    chance = random.Random(_digest(request["messages"]))
    if "guess" in tools:
        return _calling("guess", {"word": chance.choice(_WORDS)}, request)
    name, schema = next(iter(tools.items()))
    return _calling(name, _made_up(schema, chance), request)


def _sum(problem: str, question: str) -> int:
    total = sum(int(term.replace(" ", "")) for term in re.findall(r"[+-]?\s*\d+", problem))
    return total + 1 if int(_digest(question)[:8], 16) % 5 == 0 else total


def _calling(name: str, arguments: Json, request: Json) -> Json:
    """A message with one call; its identity comes from the request, so it is new every turn."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    identity = f"call_{_digest(request['messages'])[:16]}"
    return {"tool_calls": [{"id": identity, "type": "function", "function": function}]}


def _tools(request: Json) -> Iterator[tuple[str, Json]]:
    for tool in request.get("tools", ()):
        function = tool.get("function", tool)
        yield function["name"], function.get("parameters") or function.get("input_schema") or {}


def _question(request: Json) -> str:
    """The words of the last user message that has any."""
    for message in reversed(request["messages"]):
        if message["role"] == "user" and (text := _words(message["content"])):
            return text
    return ""


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part["type"] == "text")


def _made_up(schema: Json, chance: random.Random) -> Any:
    if "enum" in schema:
        return chance.choice(schema["enum"])
    for option in schema.get("anyOf", ()):
        return _made_up(option, chance)
    match schema.get("type"):
        case "object" | None if "properties" in schema:
            return {name: _made_up(part, chance) for name, part in schema["properties"].items()}
        case "object":
            return {}
        case "array":
            return [_made_up(schema.get("items", {}), chance)]
        case "integer" | "number":
            low = int(schema.get("minimum", 0))
            return chance.randint(low, int(schema.get("maximum", low + 9)))
        case "boolean":
            return chance.random() < 0.5
        case "null":
            return None
        case _:
            return chance.choice(_WORDS)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _tokens(value: Any) -> int:
    return len(json.dumps(value)) // 4 + 1


def _given(headers: Json) -> str:
    bearer = str(headers.get("authorization", "")).removeprefix("Bearer ")
    return bearer or str(headers.get("x-api-key", ""))


def _error(message: str) -> Json:
    return {"error": {"message": message, "type": "stub_error", "code": None}}


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            return bytes(body)


async def _send(send: Send, said: Said) -> None:
    data = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(data))}
    await _start(send, said.status, {**headers, **said.headers})
    await send({"type": "http.response.body", "body": data})


async def _start(send: Send, status: int, headers: Json) -> None:
    pairs = [(name.encode(), str(value).encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


@contextmanager
def chat_stub(
    reply: Reply = sensible, *, script: Sequence[Step] = (), port: int = 0, **settings: Any
) -> Iterator[Stub]:
    """A stub in a thread of this process; `settings` are those of `Stub`."""
    stub = Stub(reply, script=deque(script), **settings)
    bound = _bind(port, stub)
    server = _server(stub)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.should_exit = True
        thread.join(20)
        bound.close()
        assert not thread.is_alive(), "the stub did not stop"


def _bind(port: int, stub: Stub) -> socket.socket:
    """Listening at once: a client that comes before the server is up waits, and is served."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    bound.listen(1024)
    stub.url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
    return bound


class _Server(uvicorn.Server):
    """It stops at once: hundreds of tests start one each, and what hangs is meant to."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.005)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for task in self.server_state.tasks:
            task.cancel()


def _server(stub: Stub) -> uvicorn.Server:
    config = uvicorn.Config(stub, log_level="critical", access_log=False, lifespan="off", ws="none")
    return _Server(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--fail", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--key")
    given = parser.parse_args()
    stub = Stub(sensible, given.latency, given.fail, given.seed, given.key)
    bound = _bind(given.port, stub)
    print(stub.url, flush=True)
    _server(stub).run(sockets=[bound])


if __name__ == "__main__":
    main()
