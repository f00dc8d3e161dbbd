"""Small environments and real servers for tests to play on."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ludus import (
    Action,
    Environment,
    Episode,
    Observation,
    State,
    ToolCall,
    ToolEnvironment,
    ToolError,
    tool,
)
from ludus.environment.introspection import build_env_spec
from ludus.environment.registry import find_environment
from ludus.environment.spec import EnvSpec
from ludus.serve.app import create_app
from ludus.serve.config import ServeConfig
from ludus.serve.listening import DrainingServer
from ludus.serve.server import build_server
from ludus.serve.sessions import ServedSessions


class Counter(ToolEnvironment):
    """Add numbers up to a goal that the seed picks."""

    def reset(self, *, seed: int | None = None, goal: int | None = None) -> str:
        self.total = 0
        self.goal = goal if goal is not None else random.Random(seed).randint(5, 50)
        return f"Reach {self.goal}."

    @tool
    def add(self, number: int) -> str:
        """Add a number.

        Args:
            number: How much to add.
        """
        if number < 1:
            raise ToolError("Only numbers above zero can be added.")
        self.total += number
        if self.total >= self.goal:
            return self.finish(float(self.total == self.goal), f"Total {self.total}.")
        self.award(0.0)
        return f"Total {self.total}."

    def oracle(self) -> ToolCall:
        return ToolCall(name="add", arguments={"number": min(3, self.goal - self.total)})


class Measured(Counter):
    """A counter that says how near it is to its goal."""

    def progress(self) -> float | None:
        return min(1.0, self.total / self.goal)


class Two(ToolEnvironment):
    """Two tools, one of them async."""

    def reset(self, *, seed: int | None = None) -> str:
        return f"Hello {seed}."

    @tool
    def double(self, number: int) -> dict[str, int]:
        """Double a number.

        Args:
            number: What to double.
        """
        return {"doubled": number * 2}

    @tool
    async def leave(self, word: str = "bye") -> str:
        """End the episode.

        Args:
            word: The last word.
        """
        await asyncio.sleep(0)
        return self.finish(1.0, word)


class Move(Action):
    """Walk along a line."""

    steps: int
    label: str = ""


class View(Observation):
    """Where you are."""

    position: int
    text: str = ""


class LineState(State):
    position: int = 0


class LineWorld(Environment[Move, View, LineState]):
    """A typed environment: walk to ten."""

    def reset(self, *, seed: int | None = None, start: int = 0) -> View:
        self.position = start
        return View(position=start, text=f"You are at {start} (seed {seed}).")

    def step(self, action: Move) -> View:
        self.position += action.steps
        done = self.position >= 10
        return View(position=self.position, done=done, reward=float(done))

    @property
    def state(self) -> LineState:
        return LineState(position=self.position)


class Slow(ToolEnvironment):
    """A blocking environment: each call sleeps as long as it is told."""

    blocking = True
    closed: list[str] = []  # noqa: RUF012 - shared on purpose: tests look at who was closed
    begun: list[str] = []  # noqa: RUF012 - and at whose steps have begun
    wake = threading.Event()
    """Ends all sleeps of the class."""

    def reset(self, *, seed: int | None = None, name: str = "?") -> str:
        self.name = name
        self.calls = 0
        return "Ready."

    @tool
    def sleep(self, seconds: float) -> str:
        """Sleep.

        Args:
            seconds: How long.
        """
        self.begun.append(self.name)
        self.wake.wait(seconds)
        self.calls += 1
        self.award(1.0)
        return f"Slept, {self.calls} calls."

    def close(self) -> None:
        self.closed.append(getattr(self, "name", "?"))


@dataclass
class Served:
    """A server that is running in a thread of this process."""

    url: str
    sessions: ServedSessions
    server: DrainingServer

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws", 1) + "/ws"


@contextmanager
def serving(environment: Any, *, port: int = 0, **settings: Any) -> Iterator[Served]:
    """A real server on loopback, for a spec, a class or a contract."""
    if isinstance(environment, EnvSpec):
        contract = environment
    else:
        contract = (
            find_environment(environment)
            if isinstance(environment, str)
            else build_env_spec(environment)
        )
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    chosen = replace(ServeConfig(port=bound.getsockname()[1]), **settings)
    app = create_app(contract, chosen)
    server = build_server(app, chosen)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield Served(f"http://127.0.0.1:{chosen.port}", app.state.sessions, server)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


def wait_until(fact: Any, *, seconds: float = 30.0) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def wait_for_work(process: subprocess.Popen[str], *, seconds: float = 0.3) -> None:
    """Wait until another process has computed for so long from now on."""
    if not Path("/proc").exists():
        time.sleep(seconds)  # Only Linux tells.
        return

    def computed() -> float:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    begun = computed()
    wait_until(lambda: computed() - begun >= seconds, seconds=60)


async def until(fact: Any, *, seconds: float = 30.0) -> None:
    """Wait, without blocking the loop, for something that happens elsewhere."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


def facts(episode: Episode) -> dict[str, Any]:
    """All that must be the same when the same episode is played again: not when it was played."""
    return episode.model_dump(mode="json", exclude={"timing"})
