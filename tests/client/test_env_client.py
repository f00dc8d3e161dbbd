"""One client for callers that await and for those that do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from world import serving

from ludus import EnvClient
from ludus.envs.echo import Echo, EchoAction, EchoEnv
from ludus.errors import ConnectFailed, SessionLost


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


def test_the_connection_is_where_scripts_for_openenv_find_it() -> None:
    with serving(Echo) as served:
        client = EchoEnv(base_url=served.url).sync()
        assert client._ws is None
        client.connect()
        protocol: Any = client._ws.protocol if client._ws is not None else None
        limit = getattr(protocol, "max_message_size", None) or protocol.max_size
        assert limit == 100 * 1024 * 1024
        assert client.reset().done is False
        client.close()
        assert client._ws is None


def test_a_client_of_a_loop_that_has_ended_is_refused() -> None:
    with serving(Echo) as served:
        client = EnvClient[Any, Any, Any](base_url=served.url)

        async def begin() -> None:
            await client.reset()

        asyncio.run(begin())
        later: Any = client
        with pytest.raises(SessionLost, match="another event loop"):
            later.reset()


def test_a_client_that_never_connected_may_connect_in_another_loop() -> None:
    client = EnvClient[Any, Any, Any](base_url="http://127.0.0.1:9", connect_timeout_s=0.5)

    async def reset() -> Any:
        async with client:
            return await client.reset()

    with pytest.raises(ConnectFailed):
        asyncio.run(reset())
    with serving(Echo) as served:
        client.base_url = served.url
        assert asyncio.run(reset()).done is False


class Counting(EchoEnv):
    """Has methods of its own around those of the client."""

    calls: tuple[str, ...] = ()

    async def connect(self) -> Any:
        self.calls += ("connect",)
        return await super().connect()

    async def step(self, action: EchoAction) -> Any:
        self.calls += ("step",)
        return await super().step(action)

    async def close(self) -> None:
        self.calls += ("close",)
        await super().close()


def test_methods_of_a_subclass_are_called_by_all_kinds_of_callers() -> None:
    async def play(client: Counting) -> None:
        async with client:
            await client.step(EchoAction(message="one"))

    with serving(Echo) as served:
        clients = [Counting(base_url=served.url) for _ in range(3)]
        with clients[0].sync() as sync_client:
            sync_client.step(EchoAction(message="one"))
        asyncio.run(play(clients[1]))
        with clients[2] as client:
            client.sync().step(EchoAction(message="one"))
    assert {client.calls for client in clients} == {("connect", "step", "close")}
