"""The limit of concurrent sessions, and their fair sharing among clients, over all workers.

A free session goes to the waiting client that holds the fewest; among equals, to the one that was
served least recently. So waiting clients take turns, and a client that holds almost all sessions
gets no more while others wait. While nobody waits, one client may hold all sessions. The requests
of one client are served in order.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.managers import BaseManager
from threading import Lock

from ludus.errors import CapacityReached

_POLL_INTERVAL_S = 0.1
"""Interval at which sessions that another worker may have released are looked for."""


@dataclass(slots=True)
class _ClientUsage:
    """What a client holds and waits for, by worker."""

    held: Counter[int] = field(default_factory=Counter)
    waiting: Counter[int] = field(default_factory=Counter)
    waits_until: float = 0.0
    """A worker that hangs keeps its requests here: they must not block the others for ever."""
    last_turn: float = field(default_factory=time.monotonic)
    """When it was last served, or else when it first asked."""

    @property
    def rank(self) -> tuple[int, float]:
        """Of the clients that wait, the one with the lowest comes first."""
        return self.held.total(), self.last_turn


class ClientQuotas:
    """The sessions that clients hold. Clients are identified by their addresses.

    With several workers it is in their supervisor, which they call (`QuotaManager`).
    """

    def __init__(self, max_sessions: int, per_client: int | None = None) -> None:
        self._max_sessions = max_sessions
        self._per_client = math.inf if per_client is None else per_client
        self._clients: dict[str, _ClientUsage] = {}
        self._lock = Lock()

    def held(self) -> int:
        return sum(usage.held.total() for usage in self._clients.values())

    def held_by(self, client: str) -> int:
        usage = self._clients.get(client)
        return 0 if usage is None else usage.held.total()

    def try_acquire(self, client: str, worker: int = 0) -> bool:
        """Acquire a session for a new request, unless a waiting client comes first."""
        with self._lock:
            held = self.held_by(client)
            if self.held() >= self._max_sessions or held >= self._per_client:
                return False
            if any(usage.held.total() <= held for usage in self._waiting_clients().values()):
                return False
            self._grant(client, worker)
            return True

    def acquire_next(self, clients: Iterable[str], worker: int = 0) -> str | None:
        """Acquire a session for the client whose turn it is, if it is one of `clients`."""
        with self._lock:
            waiting = self._waiting_clients()
            if not waiting or self.held() >= self._max_sessions:
                return None
            first = min(
                waiting, key=lambda key: (waiting[key].held.total(), waiting[key].last_turn)
            )
            if first not in clients:
                return None
            self._grant(first, worker)
            return first

    def release(self, client: str, worker: int = 0) -> None:
        with self._lock:
            self._clients[client].held[worker] -= 1
            self._drop_if_empty(client)

    def begin_waiting(self, client: str, until: float, worker: int = 0) -> None:
        """Record that a request waits, at most until a time."""
        with self._lock:
            usage = self._clients.setdefault(client, _ClientUsage())
            usage.waiting[worker] += 1
            usage.waits_until = max(usage.waits_until, until)

    def end_waiting(self, client: str, worker: int = 0) -> None:
        with self._lock:
            self._clients[client].waiting[worker] -= 1
            self._drop_if_empty(client)

    def clear_worker(self, worker: int) -> None:
        """Forget a worker that has died, and its sessions with it."""
        with self._lock:
            for client, usage in list(self._clients.items()):
                usage.held.pop(worker, None)
                usage.waiting.pop(worker, None)
                self._drop_if_empty(client)

    def _grant(self, client: str, worker: int) -> None:
        usage = self._clients.setdefault(client, _ClientUsage())
        usage.held[worker] += 1
        usage.last_turn = time.monotonic()

    def _waiting_clients(self) -> dict[str, _ClientUsage]:
        """The clients that wait and are below their limit."""
        now = time.monotonic()
        return {
            client: usage
            for client, usage in self._clients.items()
            if usage.waits_until > now
            and usage.waiting.total()
            and usage.held.total() < self._per_client
        }

    def _drop_if_empty(self, client: str) -> None:
        usage = self._clients[client]
        if not usage.held.total() and not usage.waiting.total():
            del self._clients[client]


class QuotaManager(BaseManager):
    """Shares the quotas of a supervisor with its workers, over a Unix socket."""

    @classmethod
    def serve(cls, address: str, quotas: ClientQuotas) -> None:
        """Answer the workers. Does not return."""
        methods = [name for name in vars(ClientQuotas) if not name.startswith("_")]
        cls.register("quotas", lambda: quotas, exposed=methods)
        cls(address).get_server().serve_forever()

    @classmethod
    def find(cls, address: str) -> ClientQuotas:
        """The quotas, as a proxy."""
        cls.register("quotas")
        manager = cls(address)
        manager.connect()
        quotas: ClientQuotas = manager.quotas()  # type: ignore[attr-defined]
        return quotas


class SessionCapacity:
    """A counting semaphore with a fair queue. `quotas` are shared by all workers."""

    def __init__(
        self,
        max_sessions: int,
        *,
        per_client: int | None = None,
        quotas: ClientQuotas | None = None,
        worker: int = 0,
    ) -> None:
        self.max_sessions, self.per_client = max_sessions, per_client
        self._quotas = quotas or ClientQuotas(max_sessions, per_client)
        self._worker = worker
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> int:
        return self._quotas.held()

    @property
    def waiting(self) -> int:
        """Number of requests that wait at this worker."""
        return sum(len(queue) for queue in self._queues.values())

    async def acquire(self, timeout: float, client: str = "") -> None:
        """Acquire a session for a client; raises `CapacityReached` after `timeout` seconds."""
        if client not in self._queues and self._quotas.try_acquire(client, self._worker):
            return
        self._quotas.begin_waiting(client, time.monotonic() + timeout, self._worker)
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
        self._quotas.release(client, self._worker)
        self._grant_waiting()

    def _grant_waiting(self) -> None:
        """Grant free sessions to waiting requests; poll again while some still wait."""
        while self._queues:
            client = self._quotas.acquire_next(list(self._queues), self._worker)
            if client is None:
                break
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
        self._quotas.end_waiting(client, self._worker)

    def _capacity_error(self, client: str, waited: float) -> CapacityReached:
        details = {
            "active_sessions": self.in_use,
            "max_sessions": self.max_sessions,
            "retry_after_s": max(1.0, waited),
        }
        limit = self.per_client
        if limit is not None and self._quotas.held_by(client) >= limit:
            return CapacityReached(
                f"This client holds {limit} sessions, the maximum per client, and none was "
                f"closed within {waited:g} s. Close some, or start the server with a larger "
                "`max_sessions_per_client`.",
                details={**details, "max_sessions_per_client": limit},
            )
        return CapacityReached(
            f"All {self.max_sessions} sessions are in use, and none was closed within {waited:g} "
            "s. Try again later, or start the server with a larger `max_sessions`.",
            details=details,
        )
