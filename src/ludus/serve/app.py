"""The FastAPI application: the HTTP routes, and where the other endpoints are mounted.

Sessions use `/ws` and `/mcp`. `/reset`, `/step` and `/state` are stateless, as in OpenEnv: each
request builds an environment and closes it, and a step is preceded by a reset.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json, to_jsonable_python
from starlette.routing import WebSocketRoute

from ludus.data.tool_schema import JsonObject
from ludus.environment.runner import EnvironmentRunner
from ludus.environment.spec import EnvSpec
from ludus.errors import CapacityReached, InvalidAction, SessionError, SessionLost, WireError
from ludus.protocol.frames import error_frame_details, result_payload
from ludus.protocol.types import EnvironmentMetadata, Observation
from ludus.serve.access import AccessPolicy, add_access_middleware
from ludus.serve.capacity import SessionCapacity
from ludus.serve.config import ServeConfig, limit_sessions
from ludus.serve.mcp import MCP_SESSION_HEADER, McpEndpoint
from ludus.serve.metrics import Metrics
from ludus.serve.pages import add_page_routes
from ludus.serve.sessions import ServedSession, ServedSessions
from ludus.serve.worker_proxy import WorkerProxy
from ludus.serve.ws_endpoint import WsEndpoint

M = TypeVar("M", bound=BaseModel)

MAX_LISTED_TASKS = 1000
"""Maximum number of tasks in a listing; `num_tasks` has the total number."""
_STATUS_BY_CODE = {"CAPACITY_REACHED": 503, "FACTORY_ERROR": 500, "SESSION_ERROR": 504}


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
    sessions = ServedSessions(env_spec, config, capacity, worker=worker, metrics=metrics)
    proxy = proxy or WorkerProxy(worker, [])
    rpc = McpEndpoint(sessions)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await sessions.close()

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
    app.state.endpoint, app.state.access = sockets, access
    app.router.routes += [WebSocketRoute("/ws", sockets), WebSocketRoute("/mcp", rpc)]
    _add_info_routes(app, env_spec, sessions)
    add_page_routes(app, env_spec, allow_origins=config.allow_origins)
    add_episode_routes(app, sessions)
    add_task_routes(app, env_spec)
    rpc.add_routes(app, proxy)
    add_access_middleware(
        app,
        access,
        max_body=config.max_frame,
        allow_origins=config.allow_origins,
        session_header=MCP_SESSION_HEADER,
    )
    return app


def _add_info_routes(app: FastAPI, env_spec: EnvSpec, sessions: ServedSessions) -> None:
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


class ResetRequest(BaseModel):
    """The body of POST /reset: the task arguments."""

    model_config = ConfigDict(extra="allow")

    seed: int | None = Field(default=None, ge=0)
    episode_id: str | None = Field(default=None, max_length=255)


class StepRequest(BaseModel):
    """The body of POST /step."""

    model_config = ConfigDict(extra="allow")

    action: JsonObject
    timeout_s: float | None = Field(default=None, gt=0)
    """Seconds; can only shorten the `step_timeout` of the server."""
    request_id: str | None = Field(default=None, max_length=255)


class ResultReply(BaseModel):
    """The result of a reset or a step."""

    observation: JsonObject
    reward: float | None = None
    done: bool = False
    metadata: JsonObject | None = None


def add_episode_routes(app: FastAPI, sessions: ServedSessions) -> None:
    """Add reset, step and state, with a temporary session for each request."""

    @asynccontextmanager
    async def temporary_session(request: Request) -> AsyncIterator[ServedSession]:
        session = None
        try:
            session = await sessions.create()
            yield session
        except SessionError as error:
            raise _episode_http_error(error) from None
        finally:
            if session is not None:
                await sessions.destroy(session)

    def body_of(model: type[BaseModel]) -> JsonObject:
        """The OpenAPI schema of a body."""
        schema = model.model_json_schema()
        return {"requestBody": {"content": {"application/json": {"schema": schema}}}}

    @app.post("/reset", openapi_extra=body_of(ResetRequest), response_model=ResultReply)
    async def reset(request: Request) -> Response:
        """Start an episode, return its first observation, and end it: the route is stateless."""
        body = await _parse_episode_body(request, ResetRequest)
        async with temporary_session(request) as session:
            task = body.model_dump(exclude_unset=True)
            return _result_response(await session.reset(task))

    @app.post("/step", openapi_extra=body_of(StepRequest), response_model=ResultReply)
    async def step(request: Request) -> Response:
        """Take one action in a new episode, which ends with it."""
        body = await _parse_episode_body(request, StepRequest)
        async with temporary_session(request) as session:
            if body.timeout_s is not None:
                limit = session.runner.step_timeout
                session.runner.step_timeout = min(body.timeout_s, limit or body.timeout_s)
            await session.reset({})
            return _result_response(await session.step(body.action))

    @app.get("/state", response_model=JsonObject)
    async def state(request: Request) -> Response:
        """The state of a new environment."""
        async with temporary_session(request) as session:
            return _json_response(await session.runner.state())


class SplitRequest(BaseModel):
    """The body of a request about the tasks of a split."""

    model_config = ConfigDict(extra="forbid")

    split: str


class TaskRequest(SplitRequest):
    index: int


class TaskRangeRequest(SplitRequest):
    start: int | None = None
    stop: int | None = None


def add_task_routes(app: FastAPI, env_spec: EnvSpec) -> None:
    """Add the routes of splits and tasks, with a temporary environment for each request."""

    @asynccontextmanager
    async def temporary_runner(environment: str) -> AsyncIterator[EnvironmentRunner]:
        if environment.lower() not in (env_spec.id.lower(), env_spec.name.lower()):
            raise HTTPException(404, f"This server serves {env_spec.id!r}, not {environment!r}.")
        runner = EnvironmentRunner(env_spec)
        try:
            await runner.start()
            yield runner
        except NotImplementedError as error:
            raise HTTPException(501, str(error)) from None
        except (IndexError, KeyError) as error:
            raise HTTPException(400, f"No such task: {error}") from None
        except SessionError as error:
            raise _episode_http_error(error) from None
        finally:
            await runner.close()

    async def list_range(
        environment: str, split: str, start: int | None, stop: int | None
    ) -> list[object]:
        async with temporary_runner(environment) as runner:
            if hasattr(env_spec.cls, "get_task_range"):
                tasks = await runner.call_method("get_task_range", split, start, stop)
            else:
                count = await runner.call_method("num_tasks", split)
                indices = range(count)[start:stop][:MAX_LISTED_TASKS]
                tasks = [await runner.call_method("get_task", split, index) for index in indices]
            return list(to_jsonable_python(tasks))

    @app.get("/{environment}/splits")
    async def splits(environment: str) -> list[JsonObject]:
        """The splits of the tasks."""
        async with temporary_runner(environment) as runner:
            listed = to_jsonable_python(await runner.call_method("list_splits"))
        types = {"train": "train", "test": "test"}
        return [
            each
            if isinstance(each, dict)
            else {"name": str(each), "type": types.get(each, "validation")}
            for each in listed
        ]

    @app.post("/{environment}/tasks")
    async def tasks(environment: str, body: SplitRequest) -> JsonObject:
        """The tasks of a split, up to 1000."""
        listed = await list_range(environment, body.split, 0, MAX_LISTED_TASKS)
        return {"tasks": listed, "env_name": env_spec.id}

    @app.post("/{environment}/num_tasks")
    async def num_tasks(environment: str, body: SplitRequest) -> JsonObject:
        """The number of tasks of a split."""
        async with temporary_runner(environment) as runner:
            return {"num_tasks": await runner.call_method("num_tasks", body.split)}

    @app.post("/{environment}/task")
    async def task(environment: str, body: TaskRequest) -> JsonObject:
        """One task of a split, by its position."""
        async with temporary_runner(environment) as runner:
            record = await runner.call_method("get_task", body.split, body.index)
            return {"task": to_jsonable_python(record)}

    @app.post("/{environment}/task_range")
    async def task_range(environment: str, body: TaskRangeRequest) -> JsonObject:
        """The tasks of a split from `start` to `stop`, at most 1000."""
        return {"tasks": await list_range(environment, body.split, body.start, body.stop)}


def _result_response(observation: Observation) -> Response:
    """A result as OpenEnv's servers send it over HTTP: always with `metadata`, null if empty."""
    return _json_response({"metadata": None, **result_payload(observation)})


def _json_response(data: Mapping[str, object]) -> Response:
    """Encode like the WebSocket: numbers that JSON does not have become null."""
    return Response(to_json(data, inf_nan_mode="null"), media_type="application/json")


async def _parse_episode_body(request: Request, model: type[M]) -> M:
    """Validate the body; raises a 422 response with the errors."""
    try:
        return model.model_validate_json(await request.body() or b"{}")
    except ValidationError as error:
        raise HTTPException(422, error_frame_details(error)) from None


def _episode_http_error(error: SessionError) -> HTTPException:
    """The HTTP response to an error of the episode, or of its session."""
    if isinstance(error, InvalidAction):
        return HTTPException(422, error.details.get("errors") or [{"msg": str(error)}])
    if isinstance(error, CapacityReached):
        retry_after = str(int(error.details["retry_after_s"]))
        return HTTPException(503, {"message": str(error)}, headers={"Retry-After": retry_after})
    if isinstance(error, SessionLost):
        return HTTPException(503, {"message": str(error)})
    code = error.code if isinstance(error, WireError) else ""
    return HTTPException(_STATUS_BY_CODE.get(code, 500), {"message": str(error), "code": code})
