"""Sample all choices of a request at the same time, and stream their events as one response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from ludus.errors import LudusError
from ludus.serve.model.api_errors import ApiError, to_api_error

Result = TypeVar("Result")
PutEvent = Callable[[bytes], None]


async def sample_choices(choices: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Return the results of all choices; if one fails, the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(choice) for choice in choices]
    except* (LudusError, ApiError) as errors:
        raise to_api_error(errors.exceptions[0]) from None
    return [task.result() for task in tasks]


async def stream_choices(
    choices: Sequence[Callable[[PutEvent], Coroutine[Any, Any, Result]]],
    *,
    at_end: Callable[[Sequence[Result]], Iterable[bytes]],
    on_error: Callable[[ApiError], bytes],
) -> AsyncGenerator[bytes, None]:
    """Yield the server-sent events that the choices put, and those of the end or of an error."""
    events: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def run(choice: Callable[[PutEvent], Coroutine[Any, Any, Result]]) -> Result:
        try:
            return await choice(events.put_nowait)
        finally:
            events.put_nowait(None)

    tasks = [asyncio.ensure_future(run(choice)) for choice in choices]
    try:
        running = len(tasks)
        while running:
            event = await events.get()
            if event is not None:
                yield event
                continue
            running -= 1
            for task in tasks:
                if task.done():
                    task.result()  # Raises what has failed, and the others are cancelled.
        for event in at_end([task.result() for task in tasks]):
            yield event
    except (LudusError, ApiError) as error:
        # The status has been sent already.
        yield on_error(to_api_error(error))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
