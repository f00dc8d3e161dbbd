"""Serve a local model: OpenAI's routes, and routes for recorded sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException

from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError
from ludus.policy.agent import PolicyAgent
from ludus.policy.model_ref import find_local_model
from ludus.serve.access import AccessPolicy, add_access_middleware
from ludus.serve.config import ModelServeConfig, check_model_config
from ludus.serve.listening import (
    DrainingServer,
    bind_socket,
    build_uvicorn_config,
    raise_file_limit,
)
from ludus.serve.model.api_errors import ApiError, from_refusal, to_api_error
from ludus.serve.model.chat_completions import ChatCompletions
from ludus.serve.model.chat_sampler import ChatSampler
from ludus.serve.model.endpoint import SESSION_HEADER, add_endpoint
from ludus.serve.model.generator import Generator
from ludus.serve.model.recorder import Recorder
from ludus.serve.model.requests import (
    RewardBody,
    TokenizeBody,
    check_model,
    parse_body,
    parse_prompt,
)
from ludus.serve.model.responses import Responses


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server that is up tells about itself."""

    url: str
    name: str
    engine: str
    max_batch: int


def serve_model(
    agent: PolicyAgent, config: ModelServeConfig, *, on_ready: Callable[[ServedModel], None]
) -> int:
    """Load the model and serve it; returns how many episodes were recorded.

    The port and the run folder are opened first, because loading may take minutes.
    """
    check_model_config(config)
    agent.check()
    with ExitStack() as stack:
        listener = stack.enter_context(bind_socket(config.host, config.port))
        config = replace(config, port=listener.getsockname()[1])
        recorder = None
        if config.record is not None:
            timeout = config.session_timeout
            recorder = Recorder(config.record, agent.describe(), session_timeout=timeout)
            stack.callback(recorder.close)
        asyncio.run(agent.prepare())
        raise_file_limit()
        server = build_model_server(agent, config, recorder=recorder, on_ready=on_ready)
        server.run(sockets=[listener])
    return 0 if recorder is None else recorder.num_recorded


def build_model_server(
    agent: PolicyAgent,
    config: ModelServeConfig,
    *,
    recorder: Recorder | None = None,
    on_ready: Callable[[ServedModel], None] = lambda served: None,
) -> DrainingServer:
    """The server of an agent whose model is loaded."""
    generator = Generator(agent.runtime, config, max_batch=agent.max_batch)
    local = find_local_model(agent.model)
    default = Path(local.path).name if local is not None else agent.model
    # Clients find the model under each; the first is the one that it has.
    given = (config.served_name, default, agent.model)
    names = tuple(dict.fromkeys(name for name in given if name))
    app = create_model_app(generator, config, names=names, recorder=recorder)
    uvicorn_config = build_uvicorn_config(app, http="httptools", ws="none")
    served = ServedModel(config.url, names[0], agent.engine_description, agent.max_batch)
    return DrainingServer(
        uvicorn_config,
        generator.drain,
        lambda: on_ready(served),
        send_timeout=config.send_timeout,
    )


def create_model_app(
    generator: Generator,
    config: ModelServeConfig,
    *,
    names: tuple[str, ...],
    recorder: Recorder | None = None,
) -> FastAPI:
    """Build the application; the first of `names` is the model's name, the others are aliases."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sweeping = None if recorder is None else asyncio.ensure_future(recorder.sweep_forever())
        yield
        if sweeping is not None:
            sweeping.cancel()

    app = FastAPI(title=f"Ludus: {names[0]}", version="1.0.0", lifespan=lifespan)
    sampler = ChatSampler(generator, recorder)
    add = partial(add_endpoint, app, generator, names=names)
    add("/v1/chat/completions", ChatCompletions(sampler, names[0]))
    add("/v1/responses", Responses(sampler, names[0]))
    _add_info_routes(app, sampler, generator, names)

    @app.post("/sessions/{session_id:path}/reward")
    async def reward(session_id: str, request: Request) -> JsonObject:
        body = await parse_body(request, RewardBody)
        if recorder is None:
            raise ApiError("This server records no sessions.", status=404)
        episode_id = await recorder.end(session_id, body)
        if episode_id is None:
            raise ApiError(
                f"There is no open session {session_id!r}. A session ends with its reward, or "
                f"without one after {config.session_timeout:g} s without a call.",
                status=404,
                code="session_not_found",
            )
        return {"episode_id": episode_id, "run": str(recorder.run.path), "reward": body.reward}

    @app.exception_handler(ApiError)
    @app.exception_handler(LudusError)
    async def on_api_error(request: Request, error: ApiError | LudusError) -> Response:
        return to_api_error(error).to_response()

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        message = f"There is no route {path}." if error.status_code == 404 else str(error.detail)
        return ApiError(message, status=error.status_code).to_response()

    @app.exception_handler(Exception)
    async def on_error(request: Request, error: Exception) -> Response:
        return ApiError(f"The server failed: {type(error).__name__}.", status=500).to_response()

    add_access_middleware(
        app,
        AccessPolicy(config),
        max_body=config.max_body,
        allow_origins=config.allow_origins,
        session_header=SESSION_HEADER,
        to_response=lambda refusal: from_refusal(refusal).to_response(),
    )
    return app


def _add_info_routes(
    app: FastAPI, sampler: ChatSampler, generator: Generator, names: tuple[str, ...]
) -> None:
    model: JsonObject = {
        "id": names[0],
        "object": "model",
        "created": int(time.time()),
        "owned_by": "ludus",
        "max_model_len": generator.runtime.context_length,
    }

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "draining" if generator.is_draining else "healthy"}

    @app.get("/v1/models")
    async def models() -> JsonObject:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{model_id:path}")
    async def one_model(model_id: str) -> JsonObject:
        check_model(model_id, names)
        return model

    @app.post("/tokenize")
    async def tokenize(request: Request) -> JsonObject:
        body = await parse_prompt(request, TokenizeBody, generator.runtime.context_length)
        tokenizer = generator.runtime.policy.tokenizer
        if body.prompt is not None:
            encode = partial(tokenizer, body.prompt, add_special_tokens=body.add_special_tokens)
            ids = list((await asyncio.to_thread(encode))["input_ids"])
        else:
            ids = list(await sampler.tokenize(body))
        return {
            "count": len(ids),
            "max_model_len": generator.runtime.context_length,
            "tokens": ids,
        }

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(
            generate_latest(generator.metrics.registry), media_type="text/plain; version=0.0.4"
        )
