"""One client for callers that await and for those that do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from world import serving

from ludus import EnvClient
from ludus.envs.echo import Echo
from ludus.envs.echo.client import EchoEnv
from ludus.envs.echo.models import EchoAction
from ludus.errors import SessionLost


def sync_client(url: str) -> Any:
    """Typed for await; here nothing is awaited."""
    return EchoEnv(base_url=url)


def test_outside_of_an_event_loop_methods_return_results() -> None:
    with serving(Echo) as served:
        client = sync_client(served.url)
        client.reset(seed=1)
        result = client.step(EchoAction(message="hello"))
        assert result.observation.echoed_message == "hello" and result.reward is not None
        assert client.state().step_count == 1
        client.close()
        with sync_client(served.url) as other:
            assert other.reset().done is False
            assert [tool.name for tool in other.list_tools()]


def test_a_session_of_synchronous_calls_is_continued_in_async_code() -> None:
    with serving(Echo) as served:
        client = sync_client(served.url)
        client.reset()
        client.step(EchoAction(message="one"))

        async def go_on() -> int:
            await client.step(EchoAction(message="two"))
            state = await client.state()
            await client.close()
            return int(state.step_count)

        assert asyncio.run(go_on()) == 2


def test_a_client_of_a_loop_that_has_ended_is_refused() -> None:
    with serving(Echo) as served:
        client = EnvClient[Any, Any, Any](base_url=served.url)

        async def begin() -> None:
            await client.reset()

        asyncio.run(begin())
        later: Any = client
        with pytest.raises(SessionLost, match="another event loop"):
            later.reset()
