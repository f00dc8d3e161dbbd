"""The route that samples: from the body of a request to its response or event stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from http import HTTPStatus
from typing import TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ludus.errors import LudusError
from ludus.serve.model.api_errors import ApiError, to_api_error
from ludus.serve.model.chat_completions import ChatCompletions
from ludus.serve.model.chat_sampler import ChatCall
from ludus.serve.model.generator import Generator, ModelMetrics
from ludus.serve.model.requests import ChatBody, check_model, parse_prompt

SESSION_HEADER = "Ludus-Session"
_CLIENT_CLOSED_REQUEST = 499
"""The status that nginx logs for a client that went away."""

Result = TypeVar("Result")


def add_chat_route(
    app: FastAPI, generator: Generator, endpoint: ChatCompletions, *, names: tuple[str, ...]
) -> None:
    """Add the route; `names` are the model's."""
    path, metrics = "/v1/chat/completions", generator.metrics

    @app.post(path)
    async def answer(request: Request) -> Response:
        status = int(HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            body = await parse_prompt(request, ChatBody, generator.runtime.context_length)
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
