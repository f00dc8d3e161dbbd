"""Choices of a request that are streamed together."""

from __future__ import annotations

import asyncio

from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.endpoint import PutEvent, stream_choices


async def test_a_choice_that_fails_ends_the_stream_of_all() -> None:
    cancelled = asyncio.Event()

    async def fail(put_event: PutEvent) -> None:
        put_event(b"first")
        raise ApiError("The model failed.", status=500)

    async def wait(put_event: PutEvent) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    stream = stream_choices(
        [fail, wait], at_end=lambda results: [b"end"], on_error=lambda error: str(error).encode()
    )
    async with asyncio.timeout(20):
        assert [event async for event in stream] == [b"first", b"The model failed."]
    assert cancelled.is_set()
