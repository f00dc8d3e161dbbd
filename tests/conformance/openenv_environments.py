"""Environments written against OpenEnv's own base classes, as a stranger would write them."""

from __future__ import annotations

import asyncio
import threading
from enum import Enum
from typing import Any, ClassVar

from fastmcp import Context, FastMCP
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import field_validator


class GuessAction(Action):
    """Guess the number."""

    number: int
    note: str = ""


class GuessObservation(Observation):
    text: str
    guesses: int = 0


class GuessEnvironment(Environment[GuessAction, GuessObservation, State]):
    """Guess the number that the seed picks."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.secret, self.guesses = 0, 0
        self.episode_id: str | None = None

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> GuessObservation:
        self.secret, self.guesses = (seed or 0) % 10, 0
        self.episode_id = episode_id
        return GuessObservation(text="Guess from 0 to 9.", metadata={"seed": seed})

    def step(
        self, action: GuessAction, timeout_s: float | None = None, **kwargs: Any
    ) -> GuessObservation:
        self.guesses += 1
        right = action.number == self.secret
        return GuessObservation(
            text="Right." if right else "Wrong.",
            guesses=self.guesses,
            reward=1.0 if right else 0.0,
            done=right,
        )

    @property
    def state(self) -> State:
        return State(episode_id=self.episode_id, step_count=self.guesses)


class Direction(Enum):
    LEFT = 0
    RIGHT = 1


class CorridorAction(Action):
    """Walk one step."""

    direction: int

    @field_validator("direction")
    @classmethod
    def check_direction(cls, value: int) -> int:
        if value > 100:
            raise ValueError("There is no such direction.")
        return value


class CorridorEnvironment(Environment[CorridorAction, GuessObservation, State]):
    """Two steps to the right; an action that is not legal raises, as in games behind OpenEnv."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> GuessObservation:
        self.position = 0
        return GuessObservation(text="Go right.")

    def step(
        self, action: CorridorAction, timeout_s: float | None = None, **kwargs: Any
    ) -> GuessObservation:
        self.position += 1 if Direction(action.direction) is Direction.RIGHT else -1
        done = self.position == 2
        return GuessObservation(text=f"At {self.position}.", reward=float(done), done=done)

    @property
    def state(self) -> State:
        return State()


class CalculatorEnvironment(MCPEnvironment):
    """Two tools behind OpenEnv's MCP base class."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("calculator")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @server.tool
        def shout(word: str) -> str:
            """Say it loudly."""
            return word.upper()

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
        return Observation(metadata={"ready": True})

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        raise ValueError("tools only")

    @property
    def state(self) -> State:
        return State()


class CountingEnvironment(CalculatorEnvironment):
    """A tool that counts in the state of its MCP connection."""

    def __init__(self) -> None:
        super().__init__()

        @self.mcp_server.tool
        async def count(ctx: Context) -> int:
            """Count up."""
            number: int = (await ctx.get_state("number") or 0) + 1
            await ctx.set_state("number", number)
            return number


class CountedStepsEnvironment(CountingEnvironment):
    """Overrides `step` alone, as classes did before OpenEnv had async steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        self.steps += 1
        return super().step(action, timeout_s, **kwargs)

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


class CheapGuessEnvironment(GuessEnvironment):
    """The same, declared cheap: it is then stepped on the event loop."""

    blocking = False


class LaterGuessEnvironment(GuessEnvironment):
    """With async methods of its own: these are what runs."""

    async def reset_async(self, seed: int | None = None, **kwargs: Any) -> GuessObservation:
        await asyncio.sleep(0)
        return GuessObservation(text=f"Awaited {seed}.")

    async def step_async(
        self, action: GuessAction, timeout_s: float | None = None, **kwargs: Any
    ) -> GuessObservation:
        await asyncio.sleep(0)
        return GuessObservation(text="Awaited.", reward=1.0, done=True)


class ThreadedGuessEnvironment(GuessEnvironment):
    """Tells which threads it was built, used and closed in."""

    threads: ClassVar[dict[int, set[int]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self._note()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> GuessObservation:
        self._note()
        return super().reset(seed, episode_id)

    def step(
        self, action: GuessAction, timeout_s: float | None = None, **kwargs: Any
    ) -> GuessObservation:
        self._note()
        return super().step(action)

    def close(self) -> None:
        self._note()

    def _note(self) -> None:
        self.threads.setdefault(id(self), set()).add(threading.get_ident())


class OneThreadGuessEnvironment(ThreadedGuessEnvironment):
    """All of its instances must live in one thread."""

    REQUIRES_SINGLE_THREAD_EXECUTOR = True
    threads: ClassVar[dict[int, set[int]]] = {}
