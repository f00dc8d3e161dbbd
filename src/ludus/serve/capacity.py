"""The limit of concurrent sessions, and the queue for the next free one.

The requests of one client are served in order; `ludus.serve.client_quota` decides which client is
next, over all workers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from ludus.errors import CapacityReached
from ludus.serve.client_quota import ClientQuotas, QuotaTables

_POLL_INTERVAL_S = 0.1
"""Interval at which sessions that another worker may have released are looked for."""


class SessionCapacity:
    """A counting semaphore with a fair queue. `tables` are shared by all workers."""

    def __init__(
        self,
        max_sessions: int,
        *,
        per_client: int | None = None,
        tables: QuotaTables | None = None,
        worker: int = 0,
    ) -> None:
        self.max_sessions = max_sessions
        tables = tables or QuotaTables.in_process(max_sessions)
        self._quotas = ClientQuotas(
            max_sessions, per_client=per_client, tables=tables, worker=worker
        )
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> int:
        return self._quotas.held

    @property
    def waiting(self) -> int:
        """Number of requests that wait at this worker."""
        return sum(len(queue) for queue in self._queues.values())

    async def acquire(self, timeout: float, client: str = "") -> None:
        """Acquire a session for a client; raises `CapacityReached` after `timeout` seconds."""
        if client not in self._queues and self._quotas.try_acquire(client):
            return
        if not self._quotas.begin_waiting(client, time.monotonic() + timeout):
            raise self._capacity_error(client, 0.0)
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        self._grant_waiting()
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(turn)
        except TimeoutError:
            if not turn.done():
                raise self._capacity_error(client, timeout) from None
        except asyncio.CancelledError:
            if turn.done():
                self.release(client)
            raise
        finally:
            if not turn.done():
                self._leave_queue(client, turn)

    def release(self, client: str = "") -> None:
        self._quotas.release(client)
        self._grant_waiting()

    def _grant_waiting(self) -> None:
        """Grant free sessions to waiting requests; poll again while some still wait."""
        while self._queues and (client := self._quotas.acquire_next(self._queues)) is not None:
            turn = self._queues[client][0]
            turn.set_result(None)
            self._leave_queue(client, turn)
        if self._queues and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_POLL_INTERVAL_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        self._grant_waiting()

    def _leave_queue(self, client: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues[client]
        queue.remove(turn)
        if not queue:
            del self._queues[client]
        self._quotas.end_waiting(client)

    def _capacity_error(self, client: str, waited: float) -> CapacityReached:
        per_client = self._quotas.per_client
        details = {
            "active_sessions": self.in_use,
            "max_sessions": self.max_sessions,
            "retry_after_s": max(1.0, waited),
        }
        if per_client is not None and self._quotas.held_by(client) >= per_client:
            return CapacityReached(
                f"This client holds {per_client} sessions, the maximum per client, and none was "
                f"closed within {waited:g} s. Close some, or start the server with a larger "
                "`max_sessions_per_client`.",
                details={**details, "max_sessions_per_client": per_client},
            )
        return CapacityReached(
            f"All {self.max_sessions} sessions are in use, and none was closed within {waited:g} "
            "s. Try again later, or start the server with a larger `max_sessions`.",
            details=details,
        )
