"""A server process that speaks MCP on its standard input and output.

The client library has such a transport too, but does not tell why a server ended, and leaves the
children of one that ended by itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage
from pydantic import ValidationError

Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
SHUTDOWN_STEP_S = 2.0
"""Time that a server has to exit after the end of its input, and again after SIGTERM."""
_STDERR_TAIL_BYTES = 4096
_LAUNCHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("launch.py")))


class ServerEnded(Exception):
    """A server ended by itself; the message says how."""


@asynccontextmanager
async def open_stdio(command: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[Streams]:
    """Start a server; it is ended with all its children when the context is left.

    It gets `env` and the few variables that are safe to pass on, such as PATH and HOME. Raises
    `ServerEnded`, in a group, when the server ends by itself.
    """
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    with tempfile.TemporaryFile() as stderr:
        process = await asyncio.create_subprocess_exec(
            *_LAUNCHER,
            str(os.getpid()),
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=stderr,
            env={**get_default_environment(), **env},
            limit=MAX_MESSAGE_BYTES,
            start_new_session=True,
        )
        try:
            async with (
                incoming,
                read_stream,
                write_stream,
                outgoing,
                asyncio.TaskGroup() as group,
            ):
                reader = group.create_task(_receive(process, incoming, stderr))
                writer = group.create_task(_send(process, outgoing))
                yield read_stream, write_stream
                reader.cancel()
                writer.cancel()
        finally:
            await _shut_down(process)


async def _receive(
    process: Process,
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    stderr: IO[bytes],
) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        try:
            message = JSONRPCMessage.model_validate_json(line)
        except ValidationError:
            continue  # Some servers print other lines too, such as a greeting.
        await incoming.send(SessionMessage(message))
    with suppress(TimeoutError):
        async with asyncio.timeout(SHUTDOWN_STEP_S):
            await process.wait()
    raise ServerEnded(_describe_end(process, stderr))


async def _send(process: Process, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    # A server that is gone is reported by the reader, which knows why.
    with suppress(ConnectionError):
        async for item in outgoing:
            data = item.message.model_dump_json(by_alias=True, exclude_none=True)
            process.stdin.write(data.encode() + b"\n")
            await process.stdin.drain()


def _describe_end(process: Process, stderr: IO[bytes]) -> str:
    end = "closed its output"
    if process.returncode is not None:
        end = f"ended with exit code {process.returncode}"
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_TAIL_BYTES))
    lines = stderr.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    detail = f": {last.rstrip('.')}" if last else ""
    return f"The MCP server {end}{detail}."


async def _shut_down(process: Process) -> None:
    """End a server as the protocol prescribes: end of input, SIGTERM, SIGKILL."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_STEP_S):
                await process.communicate()
        if process.returncode is not None:
            break
        _signal_group(process, number)
    # Children that outlive a server have its process group.
    _signal_group(process, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(SHUTDOWN_STEP_S):
            await process.communicate()


def _signal_group(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
