"""The sessions of one worker: creation, expiry and shutdown, for all transports."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from ludus.data.tool_schema import JsonObject
from ludus.environment.runner import EnvironmentRunner
from ludus.environment.spec import EnvSpec
from ludus.errors import ExecutionFailed, SessionLost, StepTimeout, WireError
from ludus.protocol.frames import (
    CloseFrame,
    McpFrame,
    ResetFrame,
    StateFrame,
    StepFrame,
    encode_error,
    encode_frame,
    encode_observation,
    parse_frame,
)
from ludus.protocol.types import Observation
from ludus.serve.capacity import SessionCapacity
from ludus.serve.config import ServeConfig
from ludus.serve.metrics import OPENED, RESETS, Metrics

RpcHandler = Callable[[JsonObject, "ServedSession"], Awaitable[JsonObject | None]]


class ServedSession:
    """A client's session on an environment.

    Every request has exactly one reply. The last reply is kept for clients that reconnect: they
    send the number of replies received, and get the missed one.
    """

    def __init__(
        self,
        id: str,
        runner: EnvironmentRunner,
        metrics: Metrics,
        *,
        persistent: bool,
    ) -> None:
        self.id = id
        self.runner = runner
        self.persistent = persistent
        """Created by a call, not by a WebSocket: it is kept when a WebSocket disconnects."""
        self.speaks_mcp = False
        """Created by MCP's `initialize`: tool errors are returned as results."""
        self.resumable = False
        self.closed = False
        """No further request is accepted: the client closed it, or a step timed out."""
        self.requests = 0
        self.replies = 0
        self.last_reply = b""
        self.running: asyncio.Task[bytes | None] | None = None
        self.owner: object | None = None
        """The connection that is attached."""
        self.last_used_at = time.monotonic()
        self.disconnected_at: float | None = None
        self._metrics = metrics
        self._calls = 0

    async def handle(self, text: bytes, rpc: RpcHandler) -> bytes | None:
        """Handle one message and return the reply; None for `close`, which has none."""
        self.requests += 1
        try:
            frame = parse_frame(text)
            match frame:
                case StepFrame():
                    reply = encode_observation(await self.step(frame.data))
                case ResetFrame():
                    reply = encode_observation(await self.reset(frame.data))
                case StateFrame():
                    reply = encode_frame("state", await self.runner.state())
                case McpFrame():
                    reply = encode_frame("mcp", await rpc(frame.data, self) or {})
                case CloseFrame():
                    self.closed = True
                    return None
        except Exception as error:
            reply = self._encode_exception(error)
        return self._record_reply(reply)

    def handle_sync(self, text: bytes) -> bytes | None:
        """Handle a reset or a step without awaiting, for an environment that never awaits.

        Returns None, without side effects, for any other message, and while an earlier one is
        still being handled: replies must keep the order of the requests.
        """
        if self.closed or self.requests != self.replies:
            return None
        started = time.perf_counter()
        try:
            frame = parse_frame(text)
            if isinstance(frame, StepFrame):
                observation = self.runner.run_instantly(self.runner.step(frame.data))
                self._metrics.count_step(time.perf_counter() - started)
            elif isinstance(frame, ResetFrame):
                observation = self.runner.run_instantly(self.runner.reset(frame.data))
                self._metrics.count(RESETS)
            else:
                return None
            reply = encode_observation(observation)
        except Exception as error:
            reply = self._encode_exception(error)
        self.requests += 1
        return self._record_reply(reply)

    def _encode_exception(self, exception: Exception) -> bytes:
        error = exception if isinstance(exception, WireError) else ExecutionFailed(repr(exception))
        self._metrics.count_error(error.code)
        self.closed = self.closed or isinstance(error, StepTimeout)
        return encode_error(error)

    def _record_reply(self, reply: bytes) -> bytes:
        self.replies += 1
        self.last_reply = reply
        self.last_used_at = time.monotonic()
        return reply

    async def reset(self, task: JsonObject) -> Observation:
        self._metrics.count(RESETS)
        with self._in_use():
            return await self.runner.reset(task)

    async def step(self, action: JsonObject) -> Observation:
        started = time.perf_counter()
        with self._in_use():
            observation = await self.runner.step(action)
        self._metrics.count_step(time.perf_counter() - started)
        return observation

    @property
    def busy(self) -> bool:
        """Whether a request is being handled, from whichever endpoint it came."""
        is_running = self.running is not None and not self.running.done()
        return is_running or self._calls > 0

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self.last_used_at = time.monotonic()


class ServedSessions:
    """All sessions of this worker."""

    def __init__(
        self,
        env_spec: EnvSpec,
        config: ServeConfig,
        capacity: SessionCapacity,
        *,
        worker: int = 0,
        metrics: Metrics | None = None,
    ) -> None:
        self.env_spec = env_spec
        self.config = config
        self.capacity = capacity
        self.worker = worker
        self.metrics = metrics or Metrics()
        self.draining = False
        self._open: dict[str, ServedSession] = {}
        self._reaper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def new_id(self) -> str:
        """A random id, which begins with the number of the worker."""
        return f"{self.worker}-{secrets.token_hex(16)}"

    def get(self, id: str) -> ServedSession:
        if (session := self._open.get(id)) is None:
            raise SessionLost(f"Unknown session_id: {id[:80]}")
        session.last_used_at = time.monotonic()
        return session

    async def create(self, *, id: str | None = None, persistent: bool = False) -> ServedSession:
        """Create a session, once there is capacity for it; see `SessionCapacity.acquire`."""
        if self.draining:
            raise SessionLost("The server is shutting down.")
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().create_task(self._reap())
        await self.capacity.acquire(self.config.queue_timeout)
        host = EnvironmentRunner(self.env_spec, step_timeout=self.config.step_timeout)
        try:
            await host.start()
        except BaseException:
            self.capacity.release()
            raise
        session = ServedSession(id or self.new_id(), host, self.metrics, persistent=persistent)
        self._open[session.id] = session
        self.metrics.count(OPENED)
        self.metrics.set_sessions(len(self._open))
        return session

    async def destroy(self, session: ServedSession) -> None:
        """Release the capacity at once; the environment is closed after its running step."""
        if self._open.pop(session.id, None) is None:
            return
        session.closed = True
        self.capacity.release()
        self.metrics.set_sessions(len(self._open))
        if session.running is not None:
            session.running.cancel()
        await session.runner.close()

    async def drain(self, force_exit: Callable[[], bool] = lambda: False) -> None:
        """Accept no more sessions, and wait for running requests up to `shutdown_timeout`."""
        self.draining = True
        running = {s.running for s in self._open.values() if s.running is not None}
        deadline = time.monotonic() + self.config.shutdown_timeout
        while running and time.monotonic() < deadline and not force_exit():
            _, running = await asyncio.wait(running, timeout=0.1)

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
        for session in list(self._open.values()):
            await self.destroy(session)

    async def _reap(self) -> None:
        """Destroy expired sessions, periodically."""
        timeouts = [t for t in (self.config.reconnect_timeout, self.config.idle_timeout) if t]
        interval = min(1.0, *(timeout / 4 for timeout in timeouts)) if timeouts else 1.0
        while True:
            await asyncio.sleep(interval)
            for session in list(self._open.values()):
                if self.is_expired(session, time.monotonic()):
                    with suppress(Exception):
                        await self.destroy(session)

    def is_expired(self, session: ServedSession, now: float) -> bool:
        if session.busy:
            return False
        if session.disconnected_at is not None and not session.persistent:
            return now - session.disconnected_at > self.config.reconnect_timeout
        idle = self.config.idle_timeout
        return idle is not None and now - session.last_used_at > idle
