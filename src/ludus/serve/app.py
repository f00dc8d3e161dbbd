"""The FastAPI application: the HTTP routes, and where the other endpoints are mounted.

`/reset`, `/step` and `/state` are stateless, as in OpenEnv: each request builds an environment and
closes it, and a step is preceded by a reset. Sessions use `/ws` and `/mcp`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import WebSocketRoute

from ludus.environment.spec import EnvSpec
from ludus.errors import CapacityReached, InvalidAction, SessionError, SessionLost, WireError
from ludus.protocol.frames import error_frame_details, result_payload
from ludus.protocol.types import EnvironmentMetadata
from ludus.serve.access import AccessMiddleware, AccessPolicy, client_address
from ludus.serve.capacity import SessionCapacity
from ludus.serve.config import ServeConfig
from ludus.serve.mcp import McpEndpoint
from ludus.serve.mcp_http import SESSION_HEADER as MCP_SESSION_HEADER
from ludus.serve.mcp_http import McpHttp, McpWebSocket
from ludus.serve.metrics import Metrics
from ludus.serve.sessions import ServedSession, SessionRegistry
from ludus.serve.task_routes import add_task_routes
from ludus.serve.worker_proxy import WorkerProxy
from ludus.serve.ws_endpoint import WsEndpoint
from ludus.serve.ws_fast_path import UpgradeConfig

M = TypeVar("M", bound=BaseModel)

_STATUS_BY_CODE = {"CAPACITY_REACHED": 503, "FACTORY_ERROR": 500, "SESSION_ERROR": 504}


class ResetRequest(BaseModel):
    """The body of POST /reset: the task arguments."""

    model_config = ConfigDict(extra="allow")

    seed: int | None = Field(default=None, ge=0)
    episode_id: str | None = Field(default=None, max_length=255)


class StepRequest(BaseModel):
    """The body of POST /step."""

    model_config = ConfigDict(extra="allow")

    action: dict[str, Any]
    timeout_s: float | None = Field(default=None, gt=0)
    """Seconds; can only shorten the `step_timeout` of the server."""
    request_id: str | None = Field(default=None, max_length=255)


class ResultReply(BaseModel):
    """The result of a reset or a step."""

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None


def create_app(
    env_spec: EnvSpec,
    config: ServeConfig | None = None,
    *,
    capacity: SessionCapacity | None = None,
    metrics: Metrics | None = None,
    worker: int = 0,
    proxy: WorkerProxy | None = None,
) -> FastAPI:
    """Build the application that serves one environment; `app.state.sessions` has its sessions."""
    config = config or ServeConfig()
    capacity = capacity or SessionCapacity(
        config.max_sessions, per_client=config.max_sessions_per_client
    )
    sessions = SessionRegistry(env_spec, config, capacity, worker=worker, metrics=metrics)
    proxy = proxy or WorkerProxy(worker, [])
    rpc = McpEndpoint(sessions)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await sessions.close()
        await proxy.close()

    app = FastAPI(
        title=env_spec.id, description=env_spec.description, version="1.0.0", lifespan=lifespan
    )
    sockets = WsEndpoint(sessions, rpc.handle_in_session)
    access = AccessPolicy(config)
    app.state.sessions = sessions
    app.state.upgrade_config = UpgradeConfig(sockets, config, access.check, proxy.is_local)
    app.router.routes += [
        WebSocketRoute("/ws", proxy.websocket_app(sockets)),
        WebSocketRoute("/mcp", McpWebSocket(sessions, rpc)),
    ]
    _add_info_routes(app, env_spec, sessions)
    _add_episode_routes(app, sessions)
    McpHttp(sessions, rpc, proxy).add_routes(app)
    add_task_routes(app, sessions)
    app.add_middleware(AccessMiddleware, access=access, max_body=config.max_frame)
    if config.allow_origins:
        # Added last, so that it runs first: a preflight request has no token.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allow_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[MCP_SESSION_HEADER],
        )
    return app


def _add_info_routes(app: FastAPI, env_spec: EnvSpec, sessions: SessionRegistry) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "healthy"}

    @app.get("/metadata")
    async def metadata() -> EnvironmentMetadata:
        return env_spec.metadata

    @app.get("/schema")
    async def schema() -> dict[str, Any]:
        return {
            "action": env_spec.action_schema,
            "observation": env_spec.observation.model_json_schema(),
            "state": env_spec.state.model_json_schema(),
            "reset_observation": env_spec.reset_observation.model_json_schema(),
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(sessions.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_episode_routes(app: FastAPI, sessions: SessionRegistry) -> None:
    @asynccontextmanager
    async def temporary_session(request: Request) -> AsyncIterator[ServedSession]:
        try:
            session = await sessions.create(client=client_address(request.scope))
        except SessionError as error:
            raise _http_error(error) from None
        try:
            yield session
        except SessionError as error:
            raise _http_error(error) from None
        finally:
            await sessions.destroy(session)

    @app.post(
        "/reset", openapi_extra=_request_body_schema(ResetRequest), response_model=ResultReply
    )
    async def reset(request: Request) -> Any:
        body = await parse_body(request, ResetRequest)
        async with temporary_session(request) as session:
            task = body.model_dump(exclude_unset=True)
            return _json_response(result_payload(await session.reset(task)))

    @app.post("/step", openapi_extra=_request_body_schema(StepRequest), response_model=ResultReply)
    async def step(request: Request) -> Any:
        body = await parse_body(request, StepRequest)
        async with temporary_session(request) as session:
            if body.timeout_s is not None:
                limit = session.runner.step_timeout
                session.runner.step_timeout = min(body.timeout_s, limit or body.timeout_s)
            await session.reset({})
            return _json_response(result_payload(await session.step(body.action)))

    @app.get("/state", response_model=dict[str, Any])
    async def state(request: Request) -> Any:
        async with temporary_session(request) as session:
            return _json_response(await session.runner.state())


def _json_response(data: Mapping[str, Any]) -> Response:
    """Encode like the WebSocket: numbers that JSON does not have become null."""
    return Response(to_json(data, inf_nan_mode="null"), media_type="application/json")


def _request_body_schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


async def parse_body(request: Request, model: type[M]) -> M:
    """Validate the body; raises a 422 response with the errors."""
    try:
        return model.model_validate_json(await request.body() or b"{}")
    except ValidationError as error:
        raise HTTPException(422, error_frame_details(error)) from None


def _http_error(error: SessionError) -> HTTPException:
    if isinstance(error, InvalidAction):
        return HTTPException(422, error.details.get("errors") or [{"msg": str(error)}])
    if isinstance(error, CapacityReached):
        retry_after = str(int(error.details["retry_after_s"]))
        status = 429 if "max_sessions_per_client" in error.details else 503
        return HTTPException(status, {"message": str(error)}, headers={"Retry-After": retry_after})
    if isinstance(error, SessionLost):
        return HTTPException(503, {"message": str(error)})
    code = error.code if isinstance(error, WireError) else ""
    return HTTPException(_STATUS_BY_CODE.get(code, 500), {"message": str(error), "code": code})
