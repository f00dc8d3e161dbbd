"""Server-sent events, and the response that streams them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from ludus.data.tool_schema import JsonObject
from ludus.serve.model.disconnect import ClientDisconnected, run_while_connected
from ludus.serve.model.model_metrics import ModelMetrics


def encode_event(data: JsonObject, *, name: str | None = None) -> bytes:
    head = "" if name is None else f"event: {name}\n"
    text = f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n"
    return text.encode("utf-8", "replace")


class EventStream(Response):
    """A stream of server-sent events, which ends when the client goes away."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        close: Callable[[], Coroutine[Any, Any, None]],
        metrics: ModelMetrics,
        headers: dict[str, str],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", **headers})
        del self.headers["content-length"]
        self._events, self._close, self._metrics = events, close, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        try:
            await run_while_connected(receive, write())
        except ClientDisconnected:
            self._metrics.count_cancelled()
        finally:
            await self._events.aclose()
            await self._close()
