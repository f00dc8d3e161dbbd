"""Sample all choices of a request at the same time, and stream their chunks as one response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError
from ludus.serve.model.api_errors import ApiError, to_api_error
from ludus.serve.model.generator import Generation
from ludus.serve.model.reply_formats import DONE_EVENT, event

PutChunk = Callable[[JsonObject], None]
Usage = Callable[[Sequence[Generation]], JsonObject]


async def sample_choices(
    choices: Sequence[Coroutine[Any, Any, Generation]],
) -> list[Generation]:
    """Return all generations; if one fails, the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(choice) for choice in choices]
    except* (LudusError, ApiError) as errors:
        raise to_api_error(errors.exceptions[0]) from None
    return [task.result() for task in tasks]


async def stream_choices(
    choices: Sequence[Callable[[PutChunk], Coroutine[Any, Any, Generation]]],
    *,
    head: JsonObject,
    usage: Usage | None,
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks that the choices put as server-sent events, and at the end the usage."""
    chunks: asyncio.Queue[JsonObject | None] = asyncio.Queue()

    async def run(choice: Callable[[PutChunk], Coroutine[Any, Any, Generation]]) -> Generation:
        try:
            return await choice(chunks.put_nowait)
        finally:
            chunks.put_nowait(None)

    tasks = [asyncio.ensure_future(run(choice)) for choice in choices]
    try:
        running = len(tasks)
        while running:
            chunk = await chunks.get()
            if chunk is None:
                running -= 1
            else:
                yield event({**head, "choices": [chunk]})
        generations = [task.result() for task in tasks]
        if usage is not None:
            yield event({**head, "choices": [], "usage": usage(generations)})
        yield DONE_EVENT
    except (LudusError, ApiError) as error:
        # The status has been sent already.
        yield event(to_api_error(error).to_json())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
