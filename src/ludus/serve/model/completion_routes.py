"""The routes that sample: one way from the body of a request to its response or stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError
from ludus.serve.model.api_errors import ApiError, to_api_error
from ludus.serve.model.disconnect import ClientDisconnected, run_while_connected
from ludus.serve.model.event_stream import EventStream
from ludus.serve.model.model_metrics import ModelMetrics
from ludus.serve.model.prompt_limit import PromptLimit
from ludus.serve.model.request_body import check_model, parse_body
from ludus.serve.model.request_schema import SamplingBody

SESSION_HEADER = "Ludus-Session"
_CLIENT_CLOSED_REQUEST = 499
"""The status that nginx logs for a client that went away."""

Body = TypeVar("Body", bound=SamplingBody)
Call = TypeVar("Call", bound="OpenCall")


class OpenCall(Protocol):
    """A request that has its place in the queue until the stack is closed."""

    @property
    def stack(self) -> AsyncExitStack: ...

    @property
    def session_ids(self) -> Sequence[str]: ...


class Endpoint(Protocol[Body, Call]):
    """What answers the requests of one route."""

    body_type: type[Body]

    async def open(self, body: Body, session_id: str | None) -> Call: ...

    async def complete(self, call: Call) -> JsonObject: ...

    def stream(self, call: Call) -> AsyncGenerator[bytes, None]: ...


def add_completion_routes(
    app: FastAPI,
    endpoints: Mapping[str, Endpoint[Any, Any]],
    metrics: ModelMetrics,
    *,
    limit: PromptLimit,
    names: tuple[str, ...],
) -> None:
    """Add the endpoints by path; `names` are those of the model."""
    for path, endpoint in endpoints.items():
        app.post(path)(_build_route(path, endpoint, metrics, limit, names))


def _build_route(
    path: str,
    endpoint: Endpoint[Any, Any],
    metrics: ModelMetrics,
    limit: PromptLimit,
    names: tuple[str, ...],
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def answer(request: Request) -> Response:
        status = int(HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            body = await parse_body(request, endpoint.body_type, limit)
            check_model(body.model, names)
            session_id = request.headers.get(SESSION_HEADER)
            call = await run_while_connected(request.receive, endpoint.open(body, session_id))
            session_ids = ", ".join(call.session_ids)
            headers = {SESSION_HEADER: session_ids} if session_ids else {}
            if body.stream:
                status = int(HTTPStatus.OK)
                return EventStream(
                    endpoint.stream(call), close=call.stack.aclose, metrics=metrics, headers=headers
                )
            async with call.stack:
                content = await run_while_connected(request.receive, endpoint.complete(call))
            status = int(HTTPStatus.OK)
            return JSONResponse(content, headers=headers)
        except (ClientDisconnect, ClientDisconnected):
            metrics.count_cancelled()
            status = _CLIENT_CLOSED_REQUEST
            return Response(status_code=status)
        except (ApiError, LudusError) as error:
            status = to_api_error(error).status
            raise
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            metrics.count_request(path, status)

    return answer
