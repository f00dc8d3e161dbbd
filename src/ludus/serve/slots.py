"""How many sessions there may be, and the queue for the next free one.

Clients that wait take turns; the requests of one client are served in the order in which they came.
Whose turn it is, over all workers, is decided in `ludus.serve.shares`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from ludus.errors import CapacityReached
from ludus.serve.shares import Shares, Tables

_POLL_INTERVAL_S = 0.1
"""Between two looks at sessions that another worker may have freed."""


class Slots:
    """A bounded count with a fair queue. `tables` are shared by all workers."""

    def __init__(
        self,
        maximum: int,
        *,
        per_client: int | None = None,
        tables: Tables | None = None,
        worker: int = 0,
    ) -> None:
        self.maximum = maximum
        tables = tables or Tables.in_process(maximum)
        self._shares = Shares(maximum, per_client=per_client, tables=tables, worker=worker)
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def taken(self) -> int:
        return self._shares.held

    @property
    def waiting(self) -> int:
        """Requests that wait at this worker."""
        return sum(len(queue) for queue in self._queues.values())

    async def acquire(self, timeout: float, client: str = "") -> None:
        """Take a slot for this client, waiting at most `timeout` seconds for one."""
        if client not in self._queues and self._shares.take(client):
            return
        if not self._shares.begin_waiting(client, time.monotonic() + timeout):
            raise self._full(client, 0.0)
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        self._serve_queue()
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(turn)
        except TimeoutError:
            if not turn.done():
                raise self._full(client, timeout) from None
        except asyncio.CancelledError:
            if turn.done():
                self.release(client)
            raise
        finally:
            if not turn.done():
                self._leave_queue(client, turn)

    def release(self, client: str = "") -> None:
        self._shares.release(client)
        self._serve_queue()

    def _serve_queue(self) -> None:
        """Hand out what is free, and look again later if somebody still waits."""
        while self._queues and (client := self._shares.take_next(self._queues)) is not None:
            turn = self._queues[client][0]
            turn.set_result(None)
            self._leave_queue(client, turn)
        if self._queues and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_POLL_INTERVAL_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._serve_queue()

    def _leave_queue(self, client: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues[client]
        queue.remove(turn)
        if not queue:
            del self._queues[client]
        self._shares.end_waiting(client)

    def _full(self, client: str, waited: float) -> CapacityReached:
        most = self._shares.per_client
        details = {
            "active_sessions": self.taken,
            "max_sessions": self.maximum,
            "retry_after_s": max(1.0, waited),
        }
        if most is not None and self._shares.held_by(client) >= most:
            return CapacityReached(
                f"You hold {most} sessions, which is all that one client may have here, and none "
                f"of them was closed within {waited:g} s. Close some, or start the server with a "
                "larger --max-sessions-per-client.",
                details={**details, "max_sessions_per_client": most},
            )
        return CapacityReached(
            f"All {self.maximum} sessions are in use, and none came free within {waited:g} s. "
            "Try again later, or start the server with a larger --max-sessions.",
            details=details,
        )
