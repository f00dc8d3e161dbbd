"""`EnvClient`: a client with OpenEnv's interface.

Its methods are awaited in async code. Outside of an event loop they return results at once, as
OpenEnv's do; `.sync()` returns a client whose methods never are awaited, also in a notebook.
Results have `.observation`, `.reward` and `.done`. A typed client only names its types:
`class MazeEnv(EnvClient[Move, View, State])`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, cast, get_args

from pydantic import BaseModel
from websockets.asyncio.client import ClientConnection

from ludus.client.container import Container, ContainerSettings
from ludus.client.event_loop import run_sync
from ludus.client.session import describe_server
from ludus.client.websocket import ConnectionSettings, WebSocketClient
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.errors import SessionLost
from ludus.protocol.frames import action_payload, parse_result
from ludus.protocol.types import StepResult

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")
P = ParamSpec("P")
T = TypeVar("T")
ClientT = TypeVar("ClientT", bound="EnvClient[Any, Any, Any]")


def _run_if_no_loop(
    method: Callable[Concatenate[ClientT, P], Coroutine[object, None, T]],
) -> Callable[Concatenate[ClientT, P], Coroutine[object, None, T]]:
    """Let a method return its coroutine in async code. Elsewhere, run it and return its result."""

    @wraps(method)
    def call(client: ClientT, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, T]:
        coroutine = method(client, *args, **kwargs)
        if asyncio._get_running_loop() is None:
            return cast("Coroutine[object, None, T]", run_sync(coroutine))
        return coroutine

    return call


class EnvClient(Generic[ActT, ObsT, StateT]):
    """One session on an environment server; it connects on first use.

    Without type arguments, actions, observations and state are plain dictionaries.
    """

    _types: tuple[type[BaseModel] | None, ...] = (None, None, None)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            arguments = get_args(base)
            if len(arguments) == 3:
                cls._types = tuple(
                    each if isinstance(each, type) and issubclass(each, BaseModel) else None
                    for each in arguments
                )

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 60.0,
        max_message_size_mb: float = 100.0,
    ) -> None:
        self._socket_options: ConnectionSettings = {
            "headers": headers,
            "token": token,
            "connect_timeout": connect_timeout_s,
            "message_timeout": message_timeout_s,
            "max_message_mb": max_message_size_mb,
        }
        self.base_url = base_url
        self._socket: WebSocketClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop of the connection."""
        self._container: Container | None = None

    @classmethod
    def from_docker_image(
        cls, image: str, **kwargs: Unpack[ContainerSettings]
    ) -> ContainerEnvClient[ActT, ObsT, StateT]:
        """A client of a container that starts on first use and is removed with `close`.

            client = EchoEnv.from_docker_image("echo-env:latest")               # or .sync()
            client = await EchoEnv.from_docker_image("echo-env:latest")         # async

        It is also removed when this process ends, even by SIGKILL. The arguments are passed to
        `Container`; the engine pulls an image that is not on this machine.
        """
        client = cls(base_url="")
        client._container = Container(image, **kwargs)
        return ContainerEnvClient(client)

    @_run_if_no_loop
    async def connect(self) -> Self:
        """Open the session now instead of on the first request."""
        await self._ensure_connected()
        return self

    @_run_if_no_loop
    async def reset(self, /, **task: Any) -> StepResult[ObsT]:
        """Start an episode."""
        return await self._request({"type": "reset", "data": task})

    @_run_if_no_loop
    async def step(self, action: ActT) -> StepResult[ObsT]:
        """Take one action."""
        data = action_payload(cast("Mapping[str, Any] | BaseModel", action))
        return await self._request({"type": "step", "data": data})

    @_run_if_no_loop
    async def state(self) -> StateT:
        """The state of the environment."""
        socket = await self._ensure_connected()
        data = await socket.request({"type": "state"})
        model = self._types[2]
        return cast(StateT, model.model_validate(data) if model else data)

    @_run_if_no_loop
    async def list_tools(self) -> tuple[ToolSpec, ...]:
        """The tools that a model may call."""
        return (await describe_server(await self._ensure_connected())).tools

    @_run_if_no_loop
    async def close(self) -> None:
        """Close the session, and remove the container that was started for it."""
        try:
            if self._socket is not None:
                await self._socket.close()
        finally:
            if self._container is not None:
                await self._container.stop()

    def sync(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        """The same client for callers that do not await."""
        return SyncEnvClient(self)

    @property
    def _ws(self) -> ClientConnection | None:
        """The connection of the library websockets, once there is one.

        OpenEnv's clients have it under this name, and scripts raise its limit of message sizes;
        ours is 100 MiB from the start (`max_message_size_mb`).
        """
        return None if self._socket is None else self._socket.connection

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return _call_sync(self.connect)

    def __exit__(self, *error: object) -> None:
        _call_sync(self.close)

    async def _ensure_connected(self) -> WebSocketClient:
        loop = asyncio.get_running_loop()
        if self._socket is not None and self._loop is not loop:
            raise SessionLost("The client was connected in another event loop. Make a new client.")
        self._loop = loop
        if self._socket is None:
            if self._container is not None:
                self.base_url = await self._container.start()
            socket = WebSocketClient(self.base_url, **self._socket_options)
            try:
                await socket.open()
            except BaseException:
                if self._container is not None:
                    await self._container.stop()
                raise
            self._socket = socket
        return self._socket

    async def _request(self, frame: JsonObject) -> StepResult[ObsT]:
        socket = await self._ensure_connected()
        result = parse_result(await socket.request(frame))
        observation: object = result.observation
        if (model := self._types[1]) is not None:
            # A server of another version may send fields that this model does not have.
            fields = {
                key: result.observation[key]
                for key in result.observation
                if key in model.model_fields
            }
            outer = {"reward": result.reward, "done": result.done, "metadata": result.metadata}
            observation = model.model_validate(fields | outer)
        return StepResult(cast(ObsT, observation), result.reward, result.done, result.metadata)


def _call_sync(
    method: Callable[P, Coroutine[object, None, T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call a method of an `EnvClient` on the background loop, if it returns a coroutine.

    A public method, because a subclass may have its own.
    """

    async def call() -> T:
        return await method(*args, **kwargs)

    return run_sync(call())


class SyncEnvClient(Generic[ActT, ObsT, StateT]):
    """An `EnvClient` for callers that do not await; all of them share one background loop."""

    def __init__(self, client: EnvClient[ActT, ObsT, StateT]) -> None:
        self._client = client

    def connect(self) -> Self:
        _call_sync(self._client.connect)
        return self

    def reset(self, /, **task: Any) -> StepResult[ObsT]:
        return _call_sync(self._client.reset, **task)

    def step(self, action: ActT) -> StepResult[ObsT]:
        return _call_sync(self._client.step, action)

    def state(self) -> StateT:
        return _call_sync(self._client.state)

    @property
    def _ws(self) -> ClientConnection | None:
        return self._client._ws

    def list_tools(self) -> tuple[ToolSpec, ...]:
        return _call_sync(self._client.list_tools)

    def close(self) -> None:
        _call_sync(self._client.close)

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *error: object) -> None:
        self.close()


class ContainerEnvClient(SyncEnvClient[ActT, ObsT, StateT]):
    """A client of a container: synchronous as it is; await it for the asynchronous client."""

    def sync(self) -> Self:
        """Start the container and connect, for callers that do not await."""
        return self.connect()

    def __await__(self) -> Generator[Any, None, EnvClient[ActT, ObsT, StateT]]:
        return self._client.connect().__await__()

    async def __aenter__(self) -> EnvClient[ActT, ObsT, StateT]:
        return await self._client.connect()

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()
