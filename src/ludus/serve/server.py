"""Running the server: sockets, workers, and stopping without cutting a step short."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from ludus.environment.error_mapping import log_faults_to_stderr
from ludus.environment.registry import find_environment
from ludus.environment.spec import EnvSpec
from ludus.errors import LudusError
from ludus.protocol.loopback import is_loopback
from ludus.serve.access import is_valid_origin
from ludus.serve.app import create_app
from ludus.serve.capacity import SessionCapacity
from ludus.serve.client_quota import ClientRow, QuotaTables, WorkerTotals, rows_per_worker
from ludus.serve.config import ServeConfig
from ludus.serve.metrics import ROW_WIDTH, Metrics
from ludus.serve.worker_proxy import WorkerProxy
from ludus.serve.ws_fast_path import AsgiWebSocketProtocol, UpgradingProtocol

_LISTEN_BACKLOG = 4096
_RECEIVE_BUFFER_BYTES = 256 * 1024
"""Bytes that the kernel takes from a client ahead of us: requests are small. It is also the most
that is read and parsed at once, before a client that floods us can be paused."""


class ServeError(LudusError):
    """The server cannot be started like this."""


def check_config(env_spec: EnvSpec, config: ServeConfig) -> None:
    """Refuse what would be unsafe or cannot work, with what to do instead."""
    if not 0 <= config.port <= 65535:
        raise ServeError(f"There is no port {config.port}: give --port 0 to 65535.")
    if not is_loopback(config.host) and not config.token:
        raise ServeError(
            f"Binding to {config.host} without a token would let anybody in. Set LUDUS_TOKEN or "
            "give --token-file (or --token), or bind to 127.0.0.1."
        )
    for origin in config.allow_origins:
        if not is_valid_origin(origin):
            raise ServeError(
                f"{origin!r} is no origin of a web page: give --allow-origin as https://HOST, "
                "with :PORT if it has one and without a path, or as *."
            )
    together = config.max_sessions if config.workers == 1 else config.workers
    if not env_spec.concurrent and together > 1:
        raise ServeError(
            f"{env_spec.id} says that only one of it may run in a process: "
            "give --max-sessions 1 and --workers 1, or more workers elsewhere."
        )


class DrainingServer(uvicorn.Server):
    """A uvicorn server that says when it is up, and lets running steps finish when it stops."""

    def __init__(
        self, config: uvicorn.Config, app: FastAPI, on_ready: Callable[[], None] | None = None
    ) -> None:
        super().__init__(config)
        self._sessions = app.state.sessions
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What is loaded by now stays, and a step leaves little behind: the garbage collector
        # need not look often, nor far.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        if self.started and self._on_ready is not None:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in getattr(self, "servers", []):
            server.close()
        await self._sessions.drain(force_exit=lambda: self.force_exit)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal and return; uvicorn would raise it again, and die of it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def build_server(
    app: FastAPI, serve_config: ServeConfig, on_ready: Callable[[], None] | None = None
) -> DrainingServer:
    config = uvicorn.Config(
        app,
        http=partial(UpgradingProtocol, door=app.state.door),  # type: ignore[arg-type]
        ws=partial(AsgiWebSocketProtocol, send_timeout=serve_config.send_timeout),  # type: ignore[arg-type]
        ws_max_size=serve_config.max_frame,
        ws_ping_interval=serve_config.ping_interval,
        ws_ping_timeout=serve_config.ping_interval,
        ws_per_message_deflate=False,
        # Whoever comes through a proxy on this machine counts as the proxy: anybody may claim
        # another address in X-Forwarded-For.
        proxy_headers=False,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=_LISTEN_BACKLOG,
        timeout_graceful_shutdown=5,
    )
    return DrainingServer(config, app, on_ready)


def serve(spec: str, config: ServeConfig, *, on_ready: Callable[[str], None]) -> None:
    """Serve until told to stop. `ready` is called with the address once it answers there."""
    contract = find_environment(spec)
    check_config(contract, config)
    _raise_file_limit()
    log_faults_to_stderr()
    shared = config.workers > 1
    if shared:
        # Workers share their port with every process that asks for it: is another server there?
        _bind(config.host, config.port, reuse_port=False).close()
    bound = _bind(config.host, config.port, reuse_port=shared)
    port = bound.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host

    def up() -> None:
        on_ready(f"http://{host}:{port}")

    if not shared:
        build_server(create_app(contract, config), config, up).run(sockets=[bound])
        return
    try:
        _Supervisor(spec, config, port).run(up)
    finally:
        bound.close()


def _bind(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    if reuse_port:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except (socket.gaierror, UnicodeError):
        bound.close()
        raise ServeError(f"There is no host {host!r}: give another --host.") from None
    except OSError as error:
        bound.close()
        other = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
        raise ServeError(
            f"Port {port} of {host} cannot be used: {error.strerror}. Give another {other}."
        ) from None
    return bound


def _raise_file_limit() -> None:
    """Every session is an open file: ask for as many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class _SharedState:
    """What the workers have in common, in shared memory."""

    tables: QuotaTables
    """Sessions, by worker and client."""
    metrics: Any
    """Metrics, one row a worker."""
    ready: Any


class _Supervisor:
    """Starts the workers, starts them again when they die, and stops them together."""

    def __init__(self, spec: str, config: ServeConfig, port: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="ludus-")
        rows = config.workers * rows_per_worker(config.max_sessions)
        self._tables = QuotaTables(
            self._context.RawArray(WorkerTotals, config.workers),
            self._context.RawArray(ClientRow, rows),
            self._context.Lock(),
        )
        self._metrics = self._context.Array("d", config.workers * ROW_WIDTH, lock=False)
        self._ready = self._context.Semaphore(0)
        shared = _SharedState(self._tables, self._metrics, self._ready)
        self._arguments = (spec, config, port, self._folder.name, shared)
        self._workers = config.workers
        self._stop_timeout = config.shutdown_timeout + 10
        self._stopping = False

    def run(self, on_ready: Callable[[], None]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)
        workers = [self._start(index) for index in range(self._workers)]
        try:
            self._wait_until_ready(workers)
            on_ready()
            while not self._stopping:
                time.sleep(0.2)
                for index, process in enumerate(workers):
                    if not process.is_alive() and not self._stopping:
                        print(f"Worker {index} died; starting it again.", file=sys.stderr)
                        self._tables.clear_worker(index)
                        Metrics(self._metrics, index).set_sessions(0)
                        workers[index] = self._start(index)
        finally:
            self._stop_workers(workers)
            self._folder.cleanup()

    def _wait_until_ready(self, workers: list[SpawnProcess]) -> None:
        waiting = len(workers)
        while waiting and not self._stopping:
            if self._ready.acquire(timeout=0.1):
                waiting -= 1
            elif any(not process.is_alive() for process in workers):
                raise ServeError("A worker could not be started; see above.")

    def _start(self, index: int) -> SpawnProcess:
        process = self._context.Process(
            target=_run_worker, args=(index, *self._arguments), daemon=True
        )
        process.start()
        return process

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _stop_workers(self, workers: list[SpawnProcess]) -> None:
        for process in workers:
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + self._stop_timeout
        for process in workers:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()


def _run_worker(
    index: int,
    spec: str,
    config: ServeConfig,
    port: int,
    folder: str,
    shared: _SharedState,
) -> None:
    """One worker process: the shared port, and a door of its own for what others pass on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _raise_file_limit()
    log_faults_to_stderr()
    doors = [Path(folder) / f"worker-{number}.sock" for number in range(config.workers)]
    app = create_app(
        find_environment(spec),
        config,
        capacity=SessionCapacity(
            config.max_sessions,
            per_client=config.max_sessions_per_client,
            tables=shared.tables,
            worker=index,
        ),
        metrics=Metrics(shared.metrics, index),
        worker=index,
        proxy=WorkerProxy(index, doors),
    )
    front = _bind(config.host, port, reuse_port=True)
    doors[index].unlink(missing_ok=True)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(str(doors[index]))
    build_server(app, config, shared.ready.release).run(sockets=[front, door])
