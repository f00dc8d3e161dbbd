"""Run the server: sockets, worker processes, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, MutableSequence
from dataclasses import replace
from functools import partial
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Lock, Semaphore
from pathlib import Path
from types import FrameType

from fastapi import FastAPI

from ludus.environment.faults import print_faults, raise_with_location
from ludus.environment.registry import find_environment
from ludus.environment.runner import EnvironmentRunner
from ludus.environment.spec import EnvSpec
from ludus.serve.app import create_app
from ludus.serve.capacity import SessionCapacity
from ludus.serve.config import ServeConfig, ServeError, check_config, limit_sessions
from ludus.serve.listening import (
    DrainingServer,
    bind_socket,
    build_uvicorn_config,
    raise_file_limit,
)
from ludus.serve.metrics import ROW_WIDTH, Metrics
from ludus.serve.worker_proxy import WorkerProxy
from ludus.serve.ws_fast_path import UpgradingProtocol


def build_server(
    app: FastAPI, serve_config: ServeConfig, on_ready: Callable[[], None] = lambda: None
) -> DrainingServer:
    config = build_uvicorn_config(
        app,
        http=partial(UpgradingProtocol, endpoint=app.state.endpoint, access=app.state.access),
        ws="websockets-sansio",
        ws_max_size=serve_config.max_frame,
        ws_ping_interval=serve_config.ping_interval,
        ws_ping_timeout=serve_config.ping_interval,
        ws_per_message_deflate=False,
    )
    drain, timeout = app.state.sessions.drain, serve_config.send_timeout
    return DrainingServer(config, drain, on_ready, send_timeout=timeout)


def serve(spec: str, config: ServeConfig, *, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal arrives. `on_ready` is called with the URL once the server is up."""
    env_spec = find_environment(spec)
    config = limit_sessions(config, env_spec)
    check_config(env_spec, config)
    asyncio.run(_build_once(env_spec))
    raise_file_limit()
    print_faults()
    multiple = config.workers > 1
    if multiple:
        # With SO_REUSEPORT the bind below would also succeed on the port of another server.
        bind_socket(config.host, config.port).close()
    listener = bind_socket(config.host, config.port, reuse_port=multiple)
    port = listener.getsockname()[1]
    url = replace(config, port=port).url
    if not multiple:
        app = create_app(env_spec, config)
        build_server(app, config, lambda: on_ready(url)).run(sockets=[listener])
        return
    try:
        _Supervisor(spec, config, port).run(lambda: on_ready(url))
    finally:
        listener.close()


async def _build_once(env_spec: EnvSpec) -> None:
    """Raise if the environment cannot be built, which every client would be told otherwise."""
    runner = EnvironmentRunner(env_spec)
    with raise_with_location():
        await runner.start()
    await runner.close()


class _Supervisor:
    """Starts the worker processes, restarts dead ones, and stops all together."""

    def __init__(self, spec: str, config: ServeConfig, port: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="ludus-")
        self._held = self._context.RawArray("i", config.workers)
        self._metrics = self._context.Array("d", config.workers * ROW_WIDTH, lock=False)
        self._ready = self._context.Semaphore(0)
        shared = (self._held, self._context.Lock(), self._metrics, self._ready)
        self._arguments = (spec, config, port, self._folder.name, *shared)
        self._workers = config.workers
        self._stop_timeout = config.shutdown_timeout + 10
        self._stopping = False

    def run(self, on_ready: Callable[[], None]) -> None:
        def request_stop(number: int, frame: FrameType | None) -> None:
            self._stopping = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, request_stop)
        workers = [self._start(index) for index in range(self._workers)]
        try:
            starting = len(workers)
            while starting and not self._stopping:
                if self._ready.acquire(timeout=0.1):
                    starting -= 1
                elif any(not process.is_alive() for process in workers):
                    raise ServeError("A worker could not be started; see above.")
            on_ready()
            while not self._stopping:
                time.sleep(0.2)
                for index, process in enumerate(workers):
                    if not process.is_alive() and not self._stopping:
                        print(f"Worker {index} died; restarting it.", file=sys.stderr)
                        self._held[index] = 0
                        Metrics(self._metrics, index).set_sessions(0)
                        workers[index] = self._start(index)
        finally:
            for process in workers:
                if process.is_alive() and process.pid:
                    os.kill(process.pid, signal.SIGTERM)
            deadline = time.monotonic() + self._stop_timeout
            for process in workers:
                process.join(max(0.0, deadline - time.monotonic()))
                if process.is_alive():
                    process.kill()
            self._folder.cleanup()

    def _start(self, index: int) -> SpawnProcess:
        process = self._context.Process(
            target=_run_worker, args=(index, *self._arguments), daemon=True
        )
        process.start()
        return process


def _run_worker(
    index: int,
    spec: str,
    config: ServeConfig,
    port: int,
    folder: str,
    held: MutableSequence[int],
    lock: Lock,
    metrics: MutableSequence[float],
    ready: Semaphore,
) -> None:
    """Run a worker process: it listens on the shared port and on its own Unix socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_file_limit()
    print_faults()
    socket_paths = [Path(folder) / f"worker-{number}.sock" for number in range(config.workers)]
    app = create_app(
        find_environment(spec),
        config,
        capacity=SessionCapacity(config.sessions, held=held, lock=lock, worker=index),
        metrics=Metrics(metrics, index),
        worker=index,
        proxy=WorkerProxy(index, socket_paths),
    )
    listener = bind_socket(config.host, port, reuse_port=True)
    socket_paths[index].unlink(missing_ok=True)
    unix_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix_socket.bind(str(socket_paths[index]))
    build_server(app, config, ready.release).run(sockets=[listener, unix_socket])
