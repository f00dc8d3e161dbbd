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
        self._descriptions: dict[str, ServerDescription] = {}
        self._describe_lock = asyncio.Lock()

    def session(self) -> Session:
        return RemoteSession(self._open_socket, self._describe)

    async def server_url(self) -> str:
        return self.spec

    async def _open_socket(self) -> WebSocketClient:
        socket = WebSocketClient(await self.server_url(), **self._settings)
        await socket.open()
        return socket

    async def _describe(self, socket: WebSocketClient) -> ServerDescription:
        url = socket.base_url
        async with self._describe_lock:
            if url not in self._descriptions:
                self._descriptions[url] = await describe_server(socket)
            return self._descriptions[url]


class ContainerEndpoint(RemoteEndpoint):
    """Sessions on one container, which starts with the first of them and ends with `close`.

    A container that has ended by itself is started again for the next session.
    """

    def __init__(self, image: str, **settings: Unpack[ConnectionSettings]) -> None:
        super().__init__(f"{IMAGE_PREFIX}{image}", **settings)
        self._container = Container(image)

    async def server_url(self) -> str:
        return await self._container.start()

    async def close(self) -> None:
        await self._container.stop()


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
