"""Endpoints create sessions: of an environment in this process, or of a server."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ludus.client.local_session import LocalSession
from ludus.client.remote_session import RemoteSession, ServerDescription, describe_server
from ludus.client.session import Session
from ludus.client.websocket import WebSocketClient
from ludus.environment.registry import find_environment, is_url
from ludus.environment.spec import EnvSpec


class Endpoint(ABC):
    """Creates sessions of one environment."""

    spec: str
    max_sessions: int | None = None
    """How many sessions should be open at once, as far as is known without asking a server."""

    @abstractmethod
    def session(self) -> Session:
        """A new session, which is not open yet; use it as an async context manager."""


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

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.spec = base_url
        self._options = {"token": token, "headers": headers, **settings}
        self._description: ServerDescription | None = None
        self._describe_lock = asyncio.Lock()

    def session(self) -> Session:
        return RemoteSession(WebSocketClient(self.spec, **self._options), self._describe)

    async def _describe(self, socket: WebSocketClient) -> ServerDescription:
        async with self._describe_lock:
            if self._description is None:
                self._description = await describe_server(socket)
            return self._description


def connect(
    spec: str,
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    step_timeout: float | None = None,
    **settings: Any,
) -> Endpoint:
    """The endpoint of a spec or a URL.

        async with connect("wordle").session() as session:
            first = await session.reset(seed=7)
            reply = await session.call("guess", {"word": "crane"})

    `settings` (connect_timeout, message_timeout, resume_timeout, max_message_mb) apply to a URL.
    """
    if is_url(spec):
        return RemoteEndpoint(spec, token=token, headers=headers, **settings)
    return LocalEndpoint(find_environment(spec), step_timeout=step_timeout)
