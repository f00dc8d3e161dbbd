"""Endpoints create sessions: of an environment in this process, of a server, or of a container."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Self, Unpack

from ludus.client.container import Container
from ludus.client.session import (
    LocalSession,
    RemoteSession,
    ServerDescription,
    Session,
    describe_server,
)
from ludus.client.websocket import ConnectionSettings, WebSocketClient
from ludus.environment.registry import IMAGE_PREFIX, find_environment, image_of, is_url
from ludus.environment.spec import EnvSpec


class Endpoint(ABC):
    """Creates sessions of one environment. Close it when no session is open any more."""

    spec: str
    max_sessions: int | None = None
    """How many sessions should be open at once, as far as is known without asking a server."""

    @abstractmethod
    def session(self) -> Session:
        """A new session, which is not open yet; use it as an async context manager."""

    async def server_url(self) -> str | None:
        """The URL of the server, which is started if need be; None in this process."""
        return None

    async def close(self) -> None:  # noqa: B027
        """Stop what was started for the sessions. May be called twice."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class LocalEndpoint(Endpoint):
    """Sessions in this process."""

    def __init__(self, env_spec: EnvSpec, *, step_timeout: float | None = None) -> None:
        self.env_spec = env_spec
        self.spec = env_spec.id
        self.max_sessions = env_spec.max_sessions
        self._step_timeout = step_timeout

    def session(self) -> Session:
        return LocalSession(self.env_spec, step_timeout=self._step_timeout)


class RemoteEndpoint(Endpoint):
    """Sessions on a server. Its description is fetched once, for all sessions."""

    def __init__(self, base_url: str, **settings: Unpack[ConnectionSettings]) -> None:
        self.spec = base_url
        self._settings = settings
        self._description: ServerDescription | None = None
        self._describe_lock = asyncio.Lock()

    def session(self) -> Session:
        return RemoteSession(self.socket(), self.describe)

    async def server_url(self) -> str:
        return self.spec

    def socket(self) -> WebSocketClient:
        """The connection of a new session, which is not open yet."""
        return WebSocketClient(self.spec, **self._settings)

    async def describe(self, socket: WebSocketClient) -> ServerDescription:
        async with self._describe_lock:
            if self._description is None:
                self._description = await describe_server(socket)
            return self._description


class ContainerEndpoint(Endpoint):
    """Sessions on one container, which starts with the first of them and ends with `close`.

    A container that has ended by itself is started again for the next session.
    """

    def __init__(self, image: str, **settings: Unpack[ConnectionSettings]) -> None:
        self.spec = f"{IMAGE_PREFIX}{image}"
        self._container = Container(image)
        self._settings = settings
        self._server: RemoteEndpoint | None = None

    def session(self) -> Session:
        return _ContainerSession(self)

    async def server(self) -> RemoteEndpoint:
        """The endpoint of the server in the running container."""
        url = await self._container.start()
        if self._server is None or self._server.spec != url:
            self._server = RemoteEndpoint(url, **self._settings)
        return self._server

    async def server_url(self) -> str:
        return (await self.server()).spec

    async def close(self) -> None:
        await self._container.stop()


class _ContainerSession(RemoteSession):
    """A session on a container, whose address is known once it is open."""

    def __init__(self, endpoint: ContainerEndpoint) -> None:
        self._endpoint = endpoint
        self._is_connected = False

    async def open(self) -> None:
        server = await self._endpoint.server()
        super().__init__(server.socket(), server.describe)
        self._is_connected = True
        await super().open()

    async def close(self) -> None:
        if self._is_connected:
            await super().close()


def connect(
    spec: str, *, step_timeout: float | None = None, **settings: Unpack[ConnectionSettings]
) -> Endpoint:
    """The endpoint of a spec, a URL or a container image (`docker:IMAGE`).

        async with connect("wordle").session() as session:
            first = await session.reset(seed=7)
            reply = await session.call("guess", {"word": "crane"})

    `settings` (token, headers, connect_timeout, message_timeout, resume_timeout, max_message_mb)
    apply to a server.
    Close the endpoint of a container (`async with connect("docker:IMAGE") as endpoint`); at the
    latest, the container is removed when this process ends.
    """
    if (image := image_of(spec)) is not None:
        return ContainerEndpoint(image, **settings)
    if is_url(spec):
        return RemoteEndpoint(spec, **settings)
    return LocalEndpoint(find_environment(spec), step_timeout=step_timeout)
