"""The FastAPI application of a model server: OpenAI's routes, and those of recorded sessions."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError
from ludus.serve.access import AccessPolicy, add_access_middleware
from ludus.serve.model.api_errors import (
    ApiError,
    from_refusal,
    from_validation_error,
    to_api_error,
)
from ludus.serve.model.chat_completions import (
    ChatCall,
    ChatCompletions,
    render_prompt,
    to_messages,
)
from ludus.serve.model.disconnect import ClientDisconnected, run_while_connected
from ludus.serve.model.event_stream import EventStream
from ludus.serve.model.generator import Generator
from ludus.serve.model.model_config import ModelServeConfig
from ludus.serve.model.model_metrics import ModelMetrics
from ludus.serve.model.recorder import Recorder
from ludus.serve.model.request_schema import (
    ChatBody,
    CompletionBody,
    RewardBody,
    SamplingBody,
    TokenizeBody,
)
from ludus.serve.model.session import new_conversation
from ludus.serve.model.text_completions import TextCall, TextCompletions

Body = TypeVar("Body", bound=BaseModel)

SESSION_HEADER = "Ludus-Session"
_CLIENT_CLOSED_REQUEST = 499
"""The status that nginx logs for a client that went away."""


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
    _add_completion_routes(app, generator, metrics, names=names, recorder=recorder)
    _add_info_routes(app, generator, metrics, names[0], config)
    if recorder is not None:
        _add_session_routes(app, recorder, config)
    _add_error_handlers(app)
    add_access_middleware(
        app,
        AccessPolicy(config),
        max_body=config.max_body,
        allow_origins=config.allow_origins,
        session_header=SESSION_HEADER,
        to_response=from_refusal,
    )
    return app


def _add_completion_routes(
    app: FastAPI,
    generator: Generator,
    metrics: ModelMetrics,
    *,
    names: tuple[str, ...],
    recorder: Recorder | None,
) -> None:
    chat = ChatCompletions(generator, names[0], recorder)
    text = TextCompletions(generator, names[0])

    async def answer(
        request: Request,
        body: SamplingBody,
        open_call: Callable[[], Coroutine[Any, Any, ChatCall | TextCall]],
        handler: Any,
    ) -> Response:
        path = request.url.path
        status = 200
        try:
            _check_model(body.model, names)
            call = await run_while_connected(request.receive, open_call())
            ids = call.session_ids if isinstance(call, ChatCall) else []
            headers = {SESSION_HEADER: ", ".join(ids)} if ids else {}
            if body.stream:
                return EventStream(
                    handler.stream(call), close=call.stack.aclose, metrics=metrics, headers=headers
                )
            async with call.stack:
                content = await run_while_connected(request.receive, handler.complete(call))
            return JSONResponse(content, headers=headers)
        except ClientDisconnected:
            metrics.count_cancelled()
            status = _CLIENT_CLOSED_REQUEST
            return Response(status_code=status)
        except (ApiError, LudusError) as error:
            status = to_api_error(error).status
            raise
        finally:
            metrics.count_request(path, status)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = await _parse(request, ChatBody)
        session_id = request.headers.get(SESSION_HEADER)
        return await answer(request, body, lambda: chat.open(body, session_id), chat)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await _parse(request, CompletionBody)
        return await answer(request, body, lambda: text.open(body), text)


def _add_info_routes(
    app: FastAPI,
    generator: Generator,
    metrics: ModelMetrics,
    name: str,
    config: ModelServeConfig,
) -> None:
    model: JsonObject = {
        "id": name,
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
        _check_model(model_id, (name,))
        return model

    @app.post("/tokenize")
    async def tokenize(request: Request) -> JsonObject:
        body = await _parse(request, TokenizeBody)
        tokenizer = generator.runtime.policy.tokenizer
        if body.prompt is not None:
            encoded = tokenizer(body.prompt, add_special_tokens=body.add_special_tokens)
            ids = list(encoded["input_ids"])
        else:
            runtime = generator.with_template_kwargs(body.chat_template_kwargs)
            conversation = new_conversation(runtime, body.offered_tools)
            ids = list(await render_prompt(conversation, to_messages(body)))
        return {
            "count": len(ids),
            "max_model_len": generator.runtime.context_length,
            "tokens": ids,
        }

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")


def _add_session_routes(app: FastAPI, recorder: Recorder, config: ModelServeConfig) -> None:
    @app.post("/sessions/{session_id}/reward")
    async def reward(session_id: str, request: Request) -> JsonObject:
        body = await _parse(request, RewardBody)
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


async def _parse(request: Request, kind: type[Body]) -> Body:
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise from_validation_error(error) from None


def _check_model(name: str, names: tuple[str, ...]) -> None:
    """Requests without a name mean the model that is served."""
    if name and name not in names:
        raise ApiError(
            f"The model {name!r} does not exist; this server has {names[0]!r}.",
            status=404,
            param="model",
            code="model_not_found",
        )
