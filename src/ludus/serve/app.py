"""The FastAPI application: the HTTP routes, and where the other endpoints are mounted.

Sessions use `/ws` and `/mcp`; `http_routes` has the stateless routes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from starlette.routing import WebSocketRoute

from ludus.data.tool_schema import JsonObject
from ludus.environment.spec import EnvSpec
from ludus.protocol.types import EnvironmentMetadata
from ludus.serve.access import AccessPolicy, add_access_middleware
from ludus.serve.capacity import SessionCapacity
from ludus.serve.config import ServeConfig, limit_sessions
from ludus.serve.http_routes import add_episode_routes
from ludus.serve.mcp import MCP_SESSION_HEADER, McpEndpoint
from ludus.serve.metrics import Metrics
from ludus.serve.pages import add_page_routes
from ludus.serve.sessions import SessionRegistry
from ludus.serve.worker_proxy import WorkerProxy
from ludus.serve.ws_endpoint import WsEndpoint
from ludus.serve.ws_fast_path import UpgradeConfig


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
    config = limit_sessions(config or ServeConfig(), env_spec)
    capacity = capacity or SessionCapacity(config.sessions)
    sessions = SessionRegistry(env_spec, config, capacity, worker=worker, metrics=metrics)
    proxy = proxy or WorkerProxy(worker, [])
    rpc = McpEndpoint(sessions)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await sessions.close()
        await proxy.close()

    app = FastAPI(
        title=env_spec.id,
        description=env_spec.description,
        version="1.0.0",
        lifespan=lifespan,
        # FastAPI's own pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
    )
    sockets = WsEndpoint(sessions, rpc.handle, proxy)
    access = AccessPolicy(config)
    app.state.sessions = sessions
    app.state.upgrade_config = UpgradeConfig(sockets, config, access, proxy)
    app.router.routes.append(WebSocketRoute("/ws", sockets))
    _add_info_routes(app, env_spec, sessions)
    add_page_routes(app, env_spec, allow_origins=config.allow_origins)
    add_episode_routes(app, sessions)
    rpc.add_routes(app, proxy)
    add_access_middleware(
        app,
        access,
        max_body=config.max_frame,
        allow_origins=config.allow_origins,
        session_header=MCP_SESSION_HEADER,
    )
    return app


def _add_info_routes(app: FastAPI, env_spec: EnvSpec, sessions: SessionRegistry) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server runs. Needs no token."""
        return {"status": "healthy"}

    @app.get("/metadata")
    async def metadata() -> EnvironmentMetadata:
        """Name, description and documentation of the environment."""
        return env_spec.metadata

    @app.get("/schema")
    async def schema() -> JsonObject:
        """The JSON schemas of actions, observations and states."""
        return {
            "action": env_spec.action_schema,
            "observation": env_spec.observation.model_json_schema(),
            "state": env_spec.state.model_json_schema(),
            "reset_observation": env_spec.reset_observation.model_json_schema(),
        }

    @app.get("/list_environments")
    async def list_environments() -> list[str]:
        """The name of the environment, in a list."""
        return [env_spec.id]

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Sessions, resets, steps, errors and latencies, in the format of Prometheus."""
        return Response(sessions.metrics.text(), media_type="text/plain; version=0.0.4")
