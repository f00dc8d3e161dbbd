"""The routes that sample: from the body of a request to its response or event stream."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from http import HTTPStatus
from typing import Generic, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError
from ludus.serve.model.api_errors import ApiError, to_api_error
from ludus.serve.model.chat_sampler import ChatCall
from ludus.serve.model.generator import Generator, ModelMetrics
from ludus.serve.model.requests import SamplingBody, check_model, parse_prompt

SESSION_HEADER = "Ludus-Session"
_CLIENT_CLOSED_REQUEST = 499
"""The status that nginx logs for a client that went away."""

Body = TypeVar("Body", bound=SamplingBody)
Result = TypeVar("Result")
PutEvent = Callable[[bytes], None]


class Endpoint(ABC, Generic[Body]):
    """Answers the requests of one route."""

    body_type: type[Body]

    @abstractmethod
    async def open(self, body: Body, session_id: str | None) -> ChatCall:
        """Take a place in the queue, which is kept until the stack of the call is closed."""

    @abstractmethod
    async def complete(self, call: ChatCall) -> JsonObject:
        """Sample all choices, and return the response."""

    @abstractmethod
    def stream(self, call: ChatCall) -> AsyncGenerator[bytes, None]:
        """Sample all choices, and yield server-sent events as tokens arrive."""


def add_endpoint(
    app: FastAPI,
    generator: Generator,
    path: str,
    endpoint: Endpoint[Body],
    *,
    names: tuple[str, ...],
) -> None:
    """Add the route; `names` are the model's."""
    metrics, context = generator.metrics, generator.runtime.context_length

    @app.post(path)
    async def answer(request: Request) -> Response:
        status = int(HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            body = await parse_prompt(request, endpoint.body_type, context)
            check_model(body.model, names)
            session_id = request.headers.get(SESSION_HEADER)
            call = await _run_while_connected(request.receive, endpoint.open(body, session_id))
            session_ids = [each.session.id for each in call.choices if each.session is not None]
            headers = {SESSION_HEADER: ", ".join(session_ids)} if session_ids else {}
            if body.stream:
                status = int(HTTPStatus.OK)
                return _EventStream(endpoint.stream(call), call, metrics, headers)
            async with call.stack:
                content = await _run_while_connected(request.receive, endpoint.complete(call))
            status = int(HTTPStatus.OK)
            return JSONResponse(content, headers=headers)
        except (ClientDisconnect, _ClientDisconnected):
            metrics.cancelled.inc()
            status = _CLIENT_CLOSED_REQUEST
            return Response(status_code=status)
        except (ApiError, LudusError) as error:
            status = to_api_error(error).status
            raise
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            metrics.requests.labels(path, str(status)).inc()


class _ClientDisconnected(Exception):
    """The client has closed its connection: there is nobody to answer."""


async def _run_while_connected(receive: Receive, work: Coroutine[object, None, Result]) -> Result:
    """Return the result of the work, which is cancelled when the client disconnects.

    The body of the request must have been read.
    """

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise _ClientDisconnected
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


def encode_sse(data: JsonObject, *, name: str | None = None) -> bytes:
    """Encode a server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    text = f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n"
    return text.encode("utf-8", "replace")


class _EventStream(Response):
    """A stream of server-sent events, which ends when the client goes away."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        call: ChatCall,
        metrics: ModelMetrics,
        headers: dict[str, str],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", **headers})
        del self.headers["content-length"]
        self._events, self._call, self._metrics = events, call, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            status, headers = self.status_code, self.raw_headers
            await send({"type": "http.response.start", "status": status, "headers": headers})
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        try:
            await _run_while_connected(receive, write())
        except _ClientDisconnected:
            self._metrics.cancelled.inc()
        finally:
            await self._events.aclose()
            await self._call.stack.aclose()


async def stream_choices(
    choices: Sequence[Callable[[PutEvent], Coroutine[object, None, Result]]],
    *,
    at_end: Callable[[Sequence[Result]], Iterable[bytes]],
    on_error: Callable[[ApiError], bytes],
) -> AsyncGenerator[bytes, None]:
    """Yield the events that the choices put, then the end or an error."""
    events: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def run(choice: Callable[[PutEvent], Coroutine[object, None, Result]]) -> Result:
        try:
            return await choice(events.put_nowait)
        finally:
            events.put_nowait(None)

    tasks = [asyncio.ensure_future(run(choice)) for choice in choices]
    try:
        running = len(tasks)
        while running:
            event = await events.get()
            if event is not None:
                yield event
                continue
            running -= 1
            for task in tasks:
                if task.done():
                    task.result()  # Raises what has failed, and the others are cancelled.
        for event in at_end([task.result() for task in tasks]):
            yield event
    except (LudusError, ApiError) as error:
        # The status has been sent already.
        yield on_error(to_api_error(error))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
