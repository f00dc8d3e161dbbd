"""A connection to one MCP server, over its standard input and output or over HTTP.

The client library can start a server too, but does not tell why one ended, and leaves the children
of one that ended by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import anyio
import httpx
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import ClientSession, McpError
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import (
    CONNECTION_CLOSED,
    CallToolResult,
    ImageContent,
    Implementation,
    JSONRPCMessage,
    PaginatedRequestParams,
    TextContent,
)
from pydantic import ValidationError

from ludus.data.messages import Image, Text
from ludus.data.tool_schema import ToolSpec
from ludus.envs.mcp.tasks import Server
from ludus.errors import ConnectFailed, ExecutionFailed, describe_in_one_line

T = TypeVar("T")

_SESSION_TERMINATED = 32600
"""The code with which the client library reports that a server no longer knows the session."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call of a tool returned."""

    blocks: list[Text | Image]
    is_error: bool


class Connection:
    """A session with a server, held by a task of its own.

    The contexts of the client library have to be left by the task that entered them, but an
    environment is opened, used and closed by different ones.
    """

    def __init__(self, server: Server) -> None:
        self.tools: tuple[ToolSpec, ...] = ()
        self.instructions = ""
        self._server = server
        self._session: ClientSession
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run_session())

    @classmethod
    async def open(cls, server: Server) -> Connection:
        """Start a server or connect to it; raises `ConnectFailed`, which says what to do."""
        connection = cls(server)
        try:
            await connection._race(
                connection._ready.wait(), server.config.start_timeout, "The start"
            )
        except ExecutionFailed as error:
            await connection.close()
            advice = f" To see all of its output, run: {shlex.join(server.command)}"
            raise ConnectFailed(f"{error}{advice if server.command else ''}") from None
        except BaseException:
            await connection.close()
            raise
        return connection

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool; a call that the server refuses has an error as its result.

        Raises `ExecutionFailed` if the server is gone or does not answer: the connection has to
        be closed then.
        """
        request = self._session.call_tool(tool, dict(arguments))
        timeout = self._server.config.call_timeout
        try:
            result = await self._race(request, timeout, f"The tool {tool}")
        except McpError as error:
            if error.error.code not in (CONNECTION_CLOSED, _SESSION_TERMINATED):
                return ToolResult([Text(text=error.error.message)], is_error=True)
            # The task may need a moment to find out why the connection ended.
            await asyncio.wait({self._task}, timeout=1.0)
            raise self._end_error(error) from None
        return ToolResult(_to_blocks(result), is_error=result.isError)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # Marks it as retrieved.

    async def _run_session(self) -> None:
        async with (
            _open_streams(self._server) as (read_stream, write_stream),
            ClientSession(
                read_stream, write_stream, client_info=Implementation(name="ludus", version="1")
            ) as session,
        ):
            self._session = session
            self.instructions = (await session.initialize()).instructions or ""
            self.tools = await _list_tools(session)
            self._ready.set()
            await self._closing.wait()

    async def _race(self, request: Awaitable[T], timeout: float, what: str) -> T:
        """Await a request, at most until the connection ends or the time is over."""
        pending = asyncio.ensure_future(request)
        try:
            await asyncio.wait(
                {pending, self._task}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if pending.done():
                return pending.result()
            if self._task.done():
                raise self._end_error()
            raise ExecutionFailed(f"{what} of the MCP server took longer than {timeout:g} s.")
        finally:
            pending.cancel()

    def _end_error(self, reason: BaseException | None = None) -> ExecutionFailed:
        """The error that says why the connection ended."""
        if self._task.done() and not self._task.cancelled():
            reason = self._task.exception() or reason
        while isinstance(reason, BaseExceptionGroup):
            reason = reason.exceptions[0]
        if isinstance(reason, ServerEnded):
            return ExecutionFailed(str(reason))
        if isinstance(reason, httpx.ConnectError | httpx.ConnectTimeout):
            detail = str(reason) or type(reason).__name__
            return ExecutionFailed(
                f"Cannot connect to {self._server.url} ({detail}). Is the server running?"
            )
        if isinstance(reason, httpx.HTTPStatusError):
            status = reason.response.status_code
            return ExecutionFailed(
                f"{self._server.url} replied with HTTP status {status}. Check the URL, and "
                "`headers` in the task file."
            )
        detail = "" if reason is None else f": {describe_in_one_line(reason).rstrip('.')}"
        return ExecutionFailed(f"The connection to the MCP server broke{detail}.")


@asynccontextmanager
async def _open_streams(server: Server) -> AsyncIterator[Streams]:
    if server.url is None:
        async with open_stdio(server.command, server.config.env) as streams:
            yield streams
        return
    timeout = httpx.Timeout(server.config.start_timeout, read=None)
    async with (
        httpx.AsyncClient(headers=server.config.headers, timeout=timeout) as client,
        streamable_http_client(server.url, http_client=client) as (read_stream, write_stream, _),
    ):
        yield read_stream, write_stream


async def _list_tools(session: ClientSession) -> tuple[ToolSpec, ...]:
    tools: list[ToolSpec] = []
    cursor: str | None = None
    while True:
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        tools += [
            ToolSpec(
                name=tool.name,
                description=tool.description or tool.title or "",
                input_schema=tool.inputSchema,
            )
            for tool in page.tools
        ]
        cursor = page.nextCursor
        if not cursor:
            return tuple(tools)


def _to_blocks(result: CallToolResult) -> list[Text | Image]:
    """The text and the images of a result; other content is named in brackets."""
    blocks: list[Text | Image] = []
    for item in result.content:
        match item:
            case TextContent(text=text):
                blocks.append(Text(text=text))
            case ImageContent(data=data, mimeType=mime_type):
                blocks.append(Image(data=data, mime_type=mime_type))
            case _:
                blocks.append(Text(text=_describe_content(item)))
    if not blocks and result.structuredContent is not None:
        blocks.append(Text(text=json.dumps(result.structuredContent, ensure_ascii=False)))
    return blocks or [Text(text="(no output)")]


def _describe_content(item: Any) -> str:
    """A resource as its text, a link by its address, and audio by its media type."""
    resource = getattr(item, "resource", item)
    if isinstance(text := getattr(resource, "text", None), str):
        return text
    if (uri := getattr(resource, "uri", None)) is not None:
        return f"[{uri}]"
    return f"[{getattr(item, 'mimeType', item.type)}]"


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
