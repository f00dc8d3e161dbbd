"""A connection to one MCP server, over its standard input and output or over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import tempfile
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

import httpx
from mcp import ClientSession, McpError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import (
    CONNECTION_CLOSED,
    ImageContent,
    Implementation,
    PaginatedRequestParams,
    TextContent,
)

from ludus.data.messages import Image, Text
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.envs.mcp.tasks import Server
from ludus.errors import ConnectFailed, ExecutionFailed, describe_in_one_line

T = TypeVar("T")

_SESSION_TERMINATED = 32600
"""The code with which the client library reports that a server no longer knows the session."""
_STDERR_TAIL_BYTES = 4096
# Some servers print other lines than messages, such as a greeting: each would be logged.
logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call of a tool returned."""

    blocks: list[Text | Image]
    is_error: bool


class McpConnection:
    """A session with a server, held by a separate task.

    The contexts of the client library have to be left by the task that entered them, but an
    environment is opened, used and closed by different ones.
    """

    def __init__(self, server: Server) -> None:
        self.tools: tuple[ToolSpec, ...] = ()
        self.instructions = ""
        self._server = server
        self._last_line = ""
        """Of the stderr of a server that was started and has ended."""
        self._session: ClientSession
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run_session())

    @classmethod
    async def open(cls, server: Server) -> McpConnection:
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

    async def call(self, tool: str, arguments: JsonObject) -> ToolResult:
        """Call a tool; a call that the server refuses has an error as its result.

        Raises `ExecutionFailed` if the server is gone or does not answer: the connection has to
        be closed then.
        """
        request = self._session.call_tool(tool, arguments)
        timeout = self._server.config.call_timeout
        try:
            result = await self._race(request, timeout, f"The tool {tool}")
        except McpError as error:
            if error.error.code not in (CONNECTION_CLOSED, _SESSION_TERMINATED):
                return ToolResult([Text(text=error.error.message)], is_error=True)
            await self.close()
            raise self._end_error(error) from None
        blocks: list[Text | Image] = []
        for item in result.content:
            match item:
                case TextContent(text=text):
                    blocks.append(Text(text=text))
                case ImageContent(data=data, mimeType=mime_type):
                    blocks.append(Image(data=data, mime_type=mime_type))
                case _:
                    # A resource as its text, a link by its address, and audio by its media type.
                    resource = getattr(item, "resource", item)
                    content = getattr(resource, "text", None)
                    name = getattr(resource, "uri", None) or getattr(item, "mimeType", item.type)
                    blocks.append(Text(text=content if isinstance(content, str) else f"[{name}]"))
        if not blocks and result.structuredContent is not None:
            blocks.append(Text(text=json.dumps(result.structuredContent, ensure_ascii=False)))
        return ToolResult(blocks or [Text(text="(no output)")], is_error=result.isError)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # Marks it as retrieved.

    async def _run_session(self) -> None:
        """Start the server or connect to it, and keep the session until `close`."""
        config = self._server.config

        def read_last_line() -> None:
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_TAIL_BYTES))
            lines = (line.strip() for line in reversed(stderr.read().split("\n")))
            self._last_line = next(filter(None, lines), "")

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
            async with AsyncExitStack() as stack:
                stack.callback(read_last_line)
                if self._server.url is None:
                    # The server gets `env` and the few variables that are safe to pass on.
                    command, *arguments = self._server.command
                    parameters = StdioServerParameters(
                        command=command,
                        args=arguments,
                        env=config.env,
                        encoding_error_handler="replace",
                    )
                    read_stream, write_stream = await stack.enter_async_context(
                        stdio_client(parameters, errlog=stderr)
                    )
                else:
                    timeout = httpx.Timeout(config.start_timeout, read=None)
                    client = await stack.enter_async_context(
                        httpx.AsyncClient(headers=config.headers, timeout=timeout)
                    )
                    read_stream, write_stream, _ = await stack.enter_async_context(
                        streamable_http_client(self._server.url, http_client=client)
                    )
                name = Implementation(name="ludus", version="1")
                self._session = await stack.enter_async_context(
                    ClientSession(read_stream, write_stream, client_info=name)
                )
                self.instructions = (await self._session.initialize()).instructions or ""
                self.tools = await _list_tools(self._session)
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
        if self._server.url is None:
            detail = f": {self._last_line.rstrip('.')}" if self._last_line else ""
            return ExecutionFailed(f"The MCP server ended{detail}.")
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
