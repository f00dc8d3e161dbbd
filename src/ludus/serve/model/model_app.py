"""The FastAPI application of a model server: OpenAI's routes, and those of recorded sessions."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError
from ludus.policy.runtime import run_off_loop
from ludus.serve.access import AccessPolicy, add_access_middleware
from ludus.serve.model.api_errors import ApiError, from_refusal, to_api_error
from ludus.serve.model.chat_completions import ChatCompletions
from ludus.serve.model.chat_sampler import ChatSampler
from ludus.serve.model.completion_routes import SESSION_HEADER, Endpoint, add_completion_routes
from ludus.serve.model.generator import Generator
from ludus.serve.model.model_config import ModelServeConfig
from ludus.serve.model.model_metrics import ModelMetrics
from ludus.serve.model.recorder import Recorder
from ludus.serve.model.request_body import check_model, parse_body
from ludus.serve.model.request_schema import RewardBody, TokenizeBody
from ludus.serve.model.responses import Responses
from ludus.serve.model.text_completions import TextCompletions


def create_model_app(
    generator: Generator,
    metrics: ModelMetrics,
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
    endpoints: dict[str, Endpoint[Any, Any]] = {
        "/v1/chat/completions": ChatCompletions(sampler, names[0]),
        "/v1/responses": Responses(sampler, names[0]),
        "/v1/completions": TextCompletions(generator, names[0]),
    }
    add_completion_routes(app, endpoints, metrics, limit=generator.prompt_limit, names=names)
    _add_info_routes(app, sampler, generator, metrics, names=names)
    if recorder is not None:
        _add_session_routes(app, recorder, config)
    _add_error_handlers(app)
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
    app: FastAPI,
    sampler: ChatSampler,
    generator: Generator,
    metrics: ModelMetrics,
    *,
    names: tuple[str, ...],
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
        return {"status": "draining" if generator.admission.is_draining else "healthy"}

    @app.get("/v1/models")
    async def models() -> JsonObject:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{model_id:path}")
    async def one_model(model_id: str) -> JsonObject:
        check_model(model_id, names)
        return model

    @app.post("/tokenize")
    async def tokenize(request: Request) -> JsonObject:
        body = await parse_body(request, TokenizeBody, generator.prompt_limit)
        tokenizer = generator.runtime.policy.tokenizer
        if body.prompt is not None:
            encode = partial(tokenizer, body.prompt, add_special_tokens=body.add_special_tokens)
            ids = list((await run_off_loop(encode))["input_ids"])
        else:
            ids = list(await sampler.tokenize(body))
        return {
            "count": len(ids),
            "max_model_len": generator.runtime.context_length,
            "tokens": ids,
        }

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")


def _add_session_routes(app: FastAPI, recorder: Recorder, config: ModelServeConfig) -> None:
    @app.post("/sessions/{session_id:path}/reward")
    async def reward(session_id: str, request: Request) -> JsonObject:
        body = await parse_body(request, RewardBody)
        if not all(map(math.isfinite, body.rewards.values())):
            raise ApiError("A reward must be finite.", param="rewards")
        episode_id = await recorder.end(session_id, body)
        if episode_id is None:
            raise ApiError(
                f"There is no open session {session_id!r}. A session ends with its reward, or "
                f"without one after {config.session_timeout:g} s without a call.",
                status=404,
                code="session_not_found",
            )
        return {"episode_id": episode_id, "run": str(recorder.run.path), "reward": body.reward}


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> Response:
        return error.to_response()

    @app.exception_handler(LudusError)
    async def on_ludus_error(request: Request, error: LudusError) -> Response:
        return to_api_error(error).to_response()

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        message = f"There is no route {path}." if error.status_code == 404 else str(error.detail)
        return ApiError(message, status=error.status_code).to_response()

    @app.exception_handler(Exception)
    async def on_error(request: Request, error: Exception) -> Response:
        return ApiError(f"The server failed: {type(error).__name__}.", status=500).to_response()
