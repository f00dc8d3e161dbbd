"""The sessions of one worker: who holds which environment, and when it is given back.

How requests arrive (socket, HTTP, MCP) is not this module's business.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from ludus.environment.contract import Contract
from ludus.environment.host import Host
from ludus.errors import ExecutionFailed, SessionLost, StepTimeout, WireError
from ludus.protocol.frames import (
    CloseFrame,
    McpFrame,
    ResetFrame,
    StateFrame,
    StepFrame,
    encode,
    encode_error,
    encode_observation,
    parse_frame,
)
from ludus.protocol.types import Observation
from ludus.serve.metrics import Metrics
from ludus.serve.settings import ServeSettings
from ludus.serve.slots import Slots

Rpc = Callable[["ServedSession", Mapping[str, Any]], Awaitable[dict[str, Any] | None]]


class ServedSession:
    """One environment that a client holds.

    Every request has exactly one reply, and the last one is kept: a client that comes back after
    its line dropped says how many replies it has, and gets the one that it missed.
    """

    def __init__(
        self, id: str, host: Host, metrics: Metrics, *, kept: bool, client: str = ""
    ) -> None:
        self.id = id
        self.host = host
        self.client = client
        """The address whose share of the sessions it counts for."""
        self.kept = kept
        """Made by a call rather than by a socket: lives on when a socket leaves."""
        self.speaks_mcp = False
        """Made by MCP's `initialize`: tool errors are then results, as MCP has it."""
        self.resumable = False
        self.ended = False
        """No further request is taken: the client closed it, or a step hung."""
        self.requests = 0
        self.replies = 0
        self.last_reply = b""
        self.running: asyncio.Task[bytes | None] | None = None
        self.owner: object | None = None
        """The socket that is attached now."""
        self.used_at = time.monotonic()
        self.left_at: float | None = None
        self._metrics = metrics

    async def answer(self, text: bytes, rpc: Rpc) -> bytes | None:
        """The reply to one message; None for `close`, which has none."""
        self.requests += 1
        try:
            frame = parse_frame(text)
            match frame:
                case StepFrame():
                    reply = encode_observation(await self.step(frame.data))
                case ResetFrame():
                    reply = encode_observation(await self.reset(frame.data))
                case StateFrame():
                    reply = encode("state", await self.host.state())
                case McpFrame():
                    reply = encode("mcp", await rpc(self, frame.data) or {})
                case CloseFrame():
                    self.ended = True
                    return None
        except Exception as error:
            reply = self._complaint(error)
        return self._replied(reply)

    def answer_now(self, text: bytes) -> bytes | None:
        """The same within a callback: for resets and steps of an environment that never waits.

        None means that this message needs more than that, or its turn, and was not acted upon.
        """
        if self.ended or self.requests != self.replies:
            return None
        began = time.perf_counter()
        try:
            frame = parse_frame(text)
            if isinstance(frame, StepFrame):
                seen = self.host.step_now(frame.data)
                if seen is None:
                    return None
                self._metrics.stepped(time.perf_counter() - began)
            elif isinstance(frame, ResetFrame):
                seen = self.host.reset_now(frame.data)
                self._metrics.began()
            else:
                return None
            reply = encode_observation(seen)
        except Exception as error:
            reply = self._complaint(error)
        self.requests += 1
        return self._replied(reply)

    def _complaint(self, caught: Exception) -> bytes:
        error = caught if isinstance(caught, WireError) else ExecutionFailed(repr(caught))
        self._metrics.failed(error.code)
        self.ended = self.ended or isinstance(error, StepTimeout)
        return encode_error(error)

    def _replied(self, reply: bytes) -> bytes:
        self.replies += 1
        self.last_reply = reply
        self.used_at = time.monotonic()
        return reply

    async def reset(self, task: Mapping[str, Any]) -> Observation:
        self._metrics.began()
        return await self.host.reset(task)

    async def step(self, action: Mapping[str, Any]) -> Observation:
        began = time.perf_counter()
        observation = await self.host.step(action)
        self._metrics.stepped(time.perf_counter() - began)
        return observation


class Sessions:
    """All sessions of this worker."""

    def __init__(
        self,
        contract: Contract,
        settings: ServeSettings,
        slots: Slots,
        *,
        worker: int = 0,
        metrics: Metrics | None = None,
    ) -> None:
        self.contract = contract
        self.settings = settings
        self.slots = slots
        self.worker = worker
        self.metrics = metrics or Metrics()
        self.draining = False
        self._open: dict[str, ServedSession] = {}
        self._reaper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def new_id(self) -> str:
        """An id that cannot be guessed and says which worker has the session."""
        return f"{self.worker}-{secrets.token_hex(16)}"

    def get(self, id: str) -> ServedSession:
        if (session := self._open.get(id)) is None:
            raise SessionLost(f"Unknown session_id: {id[:80]}")
        return session

    async def create(
        self, *, id: str | None = None, kept: bool = False, client: str = ""
    ) -> ServedSession:
        """Build an environment, once there is a slot for it in the share of this client."""
        if self.draining:
            raise SessionLost("The server is shutting down.")
        self._watch()
        await self.slots.acquire(self.settings.queue_timeout, client)
        host = Host(self.contract, step_timeout=self.settings.step_timeout)
        try:
            await host.start()
        except BaseException:
            self.slots.release(client)
            raise
        session = ServedSession(id or self.new_id(), host, self.metrics, kept=kept, client=client)
        self._open[session.id] = session
        self.metrics.opened()
        self.metrics.sessions_are(len(self._open))
        return session

    async def destroy(self, session: ServedSession) -> None:
        """Free the slot at once; the environment follows when its running step lets go of it."""
        if self._open.pop(session.id, None) is None:
            return
        session.ended = True
        self.slots.release(session.client)
        self.metrics.sessions_are(len(self._open))
        if session.running is not None:
            session.running.cancel()
        await session.host.close()

    async def drain(self, *, hurry: Callable[[], bool] = lambda: False) -> None:
        """Take no more sessions, and let the requests that are running finish."""
        self.draining = True
        running = {s.running for s in self._open.values() if s.running is not None}
        deadline = time.monotonic() + self.settings.shutdown_timeout
        while running and time.monotonic() < deadline and not hurry():
            _, running = await asyncio.wait(running, timeout=0.1)

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
        for session in list(self._open.values()):
            await self.destroy(session)

    def _watch(self) -> None:
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().create_task(self._reap())

    async def _reap(self) -> None:
        """Close what nobody will come back for."""
        limits = [t for t in (self.settings.grace, self.settings.idle_timeout) if t]
        pause = min(1.0, *(limit / 4 for limit in limits)) if limits else 1.0
        while True:
            await asyncio.sleep(pause)
            for session in list(self._open.values()):
                if self._expired(session, time.monotonic()):
                    with suppress(Exception):
                        await self.destroy(session)

    def _expired(self, session: ServedSession, now: float) -> bool:
        if session.running is not None and not session.running.done():
            return False
        if session.left_at is not None and not session.kept:
            return now - session.left_at > self.settings.grace
        idle = self.settings.idle_timeout
        return idle is not None and now - session.used_at > idle
