"""Children that an event loop watches: a thousand sessions ask them without a single thread.

Threads would be simpler, and cost a collector a third of its speed: each of them takes the
interpreter away from the loop just when a reply has come.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pydantic_core import from_json

from ludus.envs.reasoning_gym.children import (
    MOST_CHILDREN,
    PATIENCE,
    Child,
    ChildLost,
    Children,
    Reply,
    TookTooLong,
    children,
    request_to,
)

AHEAD = 2
"""Requests that a child has at a time: the next one lies ready while a reply is on its way."""
GREETING = request_to("names", limit=120)
"""What a newborn child is asked first. It loads the library for it, which takes seconds."""
_MUCH = 1 << 20


@dataclass(eq=False, slots=True)
class Request:
    """A line for a child, and who waits for the reply."""

    line: bytes
    reply: asyncio.Future[Reply]
    asked_at: float = field(default_factory=time.monotonic)
    tried: bool = False
    """Whether a child was lost over it."""


@dataclass(eq=False)
class Line:
    """One child; its replies come in the order of the requests."""

    child: Child
    ready: bool = True
    """Whether it has loaded the library, as far as is known."""
    asked: deque[Request] = field(default_factory=deque)
    unsent: bytearray = field(default_factory=bytearray)
    unread: bytearray = field(default_factory=bytearray)


class Crew:
    """The children of one event loop."""

    def __init__(self, home: Children) -> None:
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._lines: list[Line] = []
        self._waiting: deque[Request] = deque()
        self._watching = False

    async def ask(self, line: bytes) -> Reply:
        request = Request(line, self._loop.create_future())
        self._waiting.append(request)
        self._hand_out()
        self._watch()
        return await request.reply

    @property
    def over(self) -> bool:
        return self._loop.is_closed()

    def disband(self) -> None:
        """The loop is closed: others may have the children that owe it nothing."""
        for line in self._lines:
            if line.asked or line.unsent or not line.child.alive:
                self._home.drop(line.child)
            else:
                os.set_blocking(line.child.replies, True)
                os.set_blocking(line.child.requests, True)
                self._home.give_back(line.child)
        self._lines.clear()

    def _hand_out(self) -> None:
        """Give requests to children that have few, and to newborn ones only where all are."""
        if not self._lines:
            self._hire()
        able = [line for line in self._lines if line.ready] or self._lines
        while self._waiting:
            line = min(able, key=lambda line: len(line.asked))
            if len(line.asked) >= AHEAD:
                return
            self._send(line, self._waiting.popleft())

    def _send(self, line: Line, request: Request) -> None:
        if request.reply.done():
            return  # Nobody waits for it any more.
        self._put(line, request)

    def _put(self, line: Line, request: Request) -> None:
        line.asked.append(request)
        line.unsent += request.line + b"\n"
        self._write(line)

    def _write(self, line: Line) -> None:
        try:
            sent = os.write(line.child.requests, line.unsent)
        except BlockingIOError:
            sent = 0
        except BrokenPipeError:
            return  # The reader will hear of it.
        del line.unsent[:sent]
        if line.unsent:
            self._loop.add_writer(line.child.requests, self._write, line)
        else:
            self._loop.remove_writer(line.child.requests)

    def _read(self, line: Line) -> None:
        if line.child.ended:
            return  # As the program ends, on a loop that nobody has stopped.
        data = os.read(line.child.replies, _MUCH)
        if not data:
            self._bury(line)
            return
        line.ready = True
        line.unread += data
        *replies, rest = line.unread.split(b"\n")
        line.unread = rest
        for reply in replies:
            request = line.asked.popleft()
            if not request.reply.done():
                request.reply.set_result(from_json(reply))
        self._hand_out()

    def _hire(self, *, newborn: bool = False) -> Line:
        line = Line(self._home.lend(newborn=newborn))
        os.set_blocking(line.child.replies, False)
        os.set_blocking(line.child.requests, False)
        self._loop.add_reader(line.child.replies, self._read, line)
        if self._lines:
            # Whoever is given to it now would wait longer than for one of the others.
            line.ready = False
            self._put(line, Request(GREETING, _answered(self._loop)))
        self._lines.append(line)
        return line

    def _bury(self, line: Line) -> None:
        """The child has ended: the request that it was at is to blame, the others are not."""
        self._loop.remove_reader(line.child.replies)
        self._loop.remove_writer(line.child.requests)
        self._lines.remove(line)
        error = line.child.lost()
        self._home.drop(line.child)
        if line.asked:
            self._blame(line.asked.popleft(), error)
        self._waiting.extendleft(reversed(line.asked))
        if self._waiting:
            self._hand_out()

    def _blame(self, request: Request, error: ChildLost) -> None:
        if request.reply.done():
            return
        if request.tried or isinstance(error, TookTooLong):
            request.reply.set_exception(error)
        else:
            # Something outside ended it, and may have ended the other children as well.
            request.tried = True
            self._send(self._hire(newborn=True), request)

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            self._loop.call_later(PATIENCE, self._look)

    def _look(self) -> None:
        """Hire another child when requests wait, and let none wait behind a slow one."""
        self._watching = False
        slow = [line for line in self._lines if line.asked and _impatient(line.asked[0])]
        behind = [request for line in slow for request in list(line.asked)[1:]]
        kept_waiting = [request for request in [*self._waiting, *behind] if _impatient(request)]
        if kept_waiting and len(self._lines) < MOST_CHILDREN:
            self._hire()
        if len(slow) < len(self._lines):
            for line in slow:
                self._waiting.extendleft(reversed(self._taken_from(line)))
        self._hand_out()
        if self._waiting or any(line.asked for line in self._lines):
            self._watch()

    def _taken_from(self, line: Line) -> list[Request]:
        """The requests behind the one that a child is at; its replies to them will not be heard."""
        head, *behind = line.asked
        line.asked = deque([head, *(Request(b"", _answered(self._loop)) for _ in behind)])
        return [request for request in behind if not request.reply.done()]


def _impatient(request: Request) -> bool:
    return not request.reply.done() and time.monotonic() - request.asked_at > PATIENCE


def _answered(loop: asyncio.AbstractEventLoop) -> asyncio.Future[Reply]:
    """For a request whose reply will come, though nobody waits for it."""
    future: asyncio.Future[Reply] = loop.create_future()
    future.set_result({})
    return future


_crews: WeakKeyDictionary[asyncio.AbstractEventLoop, Crew] = WeakKeyDictionary()


async def ask_later(request: bytes) -> Reply:
    """A request to some child, and its reply, without a thread."""
    loop = asyncio.get_running_loop()
    crew = _crews.get(loop)
    home = children()
    if crew is None or crew._home is not home:
        for old in [loop for loop, crew in _crews.items() if crew.over]:
            _crews.pop(old).disband()
        crew = _crews[loop] = Crew(home)
    return await crew.ask(request)
