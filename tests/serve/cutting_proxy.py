"""A TCP proxy on loopback that cuts connections when it is told to."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class CuttingProxy:
    """Passes bytes on; `cut_some` aborts connections at random, in the middle of whatever."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._lines: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for line in list(self._lines):
            line.transport.abort()
        await self._server.wait_closed()

    def cut_some(self, chance: random.Random, count: int) -> None:
        for line in chance.sample(sorted(self._lines, key=id), min(count, len(self._lines))):
            line.transport.abort()
            self.cuts += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._lines.add(writer)
        await asyncio.wait(
            [
                asyncio.ensure_future(_pump(reader, back)),
                asyncio.ensure_future(_pump(there, writer)),
            ],
            return_when=asyncio.FIRST_COMPLETED,
        )
        self._lines.discard(writer)
        back.transport.abort()
        writer.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
