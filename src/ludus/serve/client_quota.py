"""Fair sharing of sessions among clients, over all workers.

A free session goes to the waiting client that holds the fewest; among equals, to the one that was
served least recently. So waiting clients take turns, and a client that holds almost all sessions
gets no more while others wait. While nobody waits, one client may hold all sessions.

With several workers the tables are in shared memory. Each worker writes only its own rows, and all
of them hold one lock for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from ctypes import Array, Structure, c_double, c_int, c_uint64
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

MAX_WAITING_CLIENTS = 4096
"""Maximum number of clients without a session that wait at one worker; further ones are refused."""


class WorkerTotals(Structure):
    """Sums over the rows of one worker."""

    held: int
    waiting: int
    rows: int
    _fields_ = (("held", c_int), ("waiting", c_int), ("rows", c_int))


class ClientRow(Structure):
    """One client at one worker."""

    client: int
    held: int
    waiting: int
    waits_until: float
    last_turn: float
    """When it was last served, or else when it first asked."""
    _fields_ = (
        ("client", c_uint64),
        ("held", c_int),
        ("waiting", c_int),
        ("waits_until", c_double),
        ("last_turn", c_double),
    )


@dataclass(frozen=True, slots=True)
class QuotaTables:
    """The tables of all workers."""

    totals: Array[WorkerTotals]
    rows: Array[ClientRow]
    lock: AbstractContextManager[Any]

    @classmethod
    def in_process(cls, max_sessions: int) -> QuotaTables:
        rows = ClientRow * rows_per_worker(max_sessions)
        return cls((WorkerTotals * 1)(), rows(), nullcontext())

    def clear_worker(self, worker: int) -> None:
        """Remove the rows of a worker that has died, and its sessions with it."""
        with self.lock:
            self.totals[worker] = WorkerTotals()


def rows_per_worker(max_sessions: int) -> int:
    return max_sessions + MAX_WAITING_CLIENTS


@dataclass(slots=True)
class _ClientUsage:
    """What a client holds, and whether it waits, over all workers."""

    held: int = 0
    waiting: bool = False
    last_turn: float = 0.0


class ClientQuotas:
    """The quotas as seen by one worker. Clients are identified by their addresses."""

    def __init__(
        self, max_sessions: int, *, per_client: int | None, tables: QuotaTables, worker: int = 0
    ) -> None:
        self.max_sessions = max_sessions
        self.per_client = per_client
        self._tables = tables
        self._totals = tables.totals[worker]
        self._size = rows_per_worker(max_sessions)
        self._first = worker * self._size
        self._index: dict[int, int] = {}
        """Position of a client's row among those of this worker."""

    @property
    def held(self) -> int:
        return sum(totals.held for totals in self._tables.totals)

    def held_by(self, client: str) -> int:
        key = _client_key(client)
        return sum(row.held for row in self._all_rows() if row.client == key)

    def try_acquire(self, client: str) -> bool:
        """Acquire a session for a new request, unless a waiting client comes first."""
        with self._tables.lock:
            if self.held >= self.max_sessions:
                return False
            if self.per_client is not None and self.held_by(client) >= self.per_client:
                return False
            if any(totals.waiting for totals in self._tables.totals):
                held = self.held_by(client)
                if any(waiting.held <= held for waiting in self._waiting_clients().values()):
                    return False
            return self._grant(_client_key(client))

    def acquire_next(self, clients: Iterable[str]) -> str | None:
        """Acquire a session for the client whose turn it is, if it is one of `clients`."""
        with self._tables.lock:
            if self.held >= self.max_sessions:
                return None
            waiting = self._waiting_clients()
            if not waiting:
                return None
            first = min(waiting, key=lambda key: (waiting[key].held, waiting[key].last_turn))
            client = next((client for client in clients if _client_key(client) == first), None)
            return client if client is not None and self._grant(first) else None

    def release(self, client: str) -> None:
        with self._tables.lock:
            row = self._row(_client_key(client))
            row.held -= 1
            self._totals.held -= 1
            self._drop_if_empty(row)

    def begin_waiting(self, client: str, until: float) -> bool:
        """Record that a request waits, at most until a time; False if too many clients wait."""
        with self._tables.lock:
            key = _client_key(client)
            if key not in self._index and self._totals.rows >= self._size:
                return False
            row = self._row(key)
            row.waiting += 1
            row.waits_until = max(row.waits_until, until)
            self._totals.waiting += 1
            return True

    def end_waiting(self, client: str) -> None:
        with self._tables.lock:
            row = self._row(_client_key(client))
            row.waiting -= 1
            self._totals.waiting -= 1
            self._drop_if_empty(row)

    def _grant(self, key: int) -> bool:
        if key not in self._index and self._totals.rows >= self._size:
            return False
        row = self._row(key)
        row.held += 1
        row.last_turn = time.monotonic()
        self._totals.held += 1
        return True

    def _waiting_clients(self) -> dict[int, _ClientUsage]:
        """The clients that wait and are below their limit."""
        clients: dict[int, _ClientUsage] = {}
        now = time.monotonic()
        for row in self._all_rows():
            usage = clients.setdefault(row.client, _ClientUsage())
            usage.held += row.held
            # A worker that hangs keeps its rows: they must not block the others for ever.
            usage.waiting |= row.waiting > 0 and row.waits_until > now
            usage.last_turn = max(usage.last_turn, row.last_turn)
        limit = math.inf if self.per_client is None else self.per_client
        return {
            key: usage for key, usage in clients.items() if usage.waiting and usage.held < limit
        }

    def _all_rows(self) -> Iterator[ClientRow]:
        for worker, totals in enumerate(self._tables.totals):
            first = worker * self._size
            yield from self._tables.rows[first : first + totals.rows]

    def _row(self, key: int) -> ClientRow:
        """The row of a client at this worker, which is added if there is none."""
        if key not in self._index:
            self._index[key] = self._totals.rows
            self._tables.rows[self._first + self._totals.rows] = ClientRow(
                client=key, last_turn=time.monotonic()
            )
            self._totals.rows += 1
        return self._tables.rows[self._first + self._index[key]]

    def _drop_if_empty(self, row: ClientRow) -> None:
        if row.held or row.waiting:
            return
        # The last row moves into the gap.
        index = self._index.pop(row.client)
        self._totals.rows -= 1
        if index != self._totals.rows:
            last = self._tables.rows[self._first + self._totals.rows]
            self._tables.rows[self._first + index] = last
            self._index[last.client] = index


def _client_key(client: str) -> int:
    return int.from_bytes(blake2b(client.encode(), digest_size=8).digest())
