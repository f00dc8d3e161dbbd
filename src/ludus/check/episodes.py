"""Whole episodes for the doctor: by the oracle where there is one, else by chance.

They are played by the same loop as everybody's; a session in between takes down what it saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from ludus.agents.agent import Agent
from ludus.agents.oracle import OracleAgent, ShadowEnvironment
from ludus.agents.random_agent import RandomAgent
from ludus.check.advice import RETURN_MOVE
from ludus.client.session import Session, StepResult
from ludus.environment.spec import EnvSpec
from ludus.errors import BadEnvironment, LudusError
from ludus.protocol.frames import action_payload
from ludus.rollout import Assignment, EpisodeLimits, run_episode

MAX_STEPS = 100
"""Where an episode is cut off that does not end by itself."""

WaitForTurn = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Transcript:
    """Everything that was seen and done in one episode."""

    results: list[StepResult[dict[str, Any]]] = field(default_factory=list)
    actions: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        return [result.reward for result in self.results if result.reward is not None]

    @property
    def done(self) -> bool:
        return bool(self.results) and self.results[-1].done

    def as_comparable(self) -> list[Any]:
        """What must be the same when the episode is the same."""
        seen = [
            (_without_episode_id(result.observation), result.reward, result.done, result.error)
            for result in self.results
        ]
        return [seen, self.actions]


def _without_episode_id(observation: Mapping[str, Any]) -> Any:
    return {key: value for key, value in observation.items() if key != "episode_id"}


class EpisodeFailed(LudusError):
    """An episode could not be played; `advice` says what to do, where that is known."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class RecordingSession(Session):
    """A session that takes down what passes through it; `turn` is awaited before each request."""

    def __init__(self, session: Session, turn: WaitForTurn | None = None) -> None:
        self._session = session
        self._turn = turn
        self.tools = session.tools
        self.calls_by_name = session.calls_by_name
        self.transcript = Transcript()

    async def open(self) -> None:
        """The session is open already, and is closed by whoever opened it."""

    async def close(self) -> None:
        """See `open`."""

    async def reset(self, **task: Any) -> StepResult[dict[str, Any]]:
        await self._wait_for_turn()
        return self._record(await self._session.reset(**task))

    async def step(self, action: Mapping[str, Any] | BaseModel) -> StepResult[dict[str, Any]]:
        await self._wait_for_turn()
        self.transcript.actions.append(action_payload(action))
        return self._record(await self._session.step(action))

    async def state(self) -> dict[str, Any]:
        return await self._session.state()

    async def _wait_for_turn(self) -> None:
        if self._turn is not None:
            await self._turn()

    def _record(self, result: StepResult[dict[str, Any]]) -> StepResult[dict[str, Any]]:
        self.transcript.results.append(result)
        return result


class EpisodePlayer:
    """Plays one episode at a time on a session."""

    def __init__(self, contract: EnvSpec | None) -> None:
        self.is_oracle = contract is not None and ShadowEnvironment.has_oracle(contract)
        self._agent: Agent = OracleAgent() if self.is_oracle else RandomAgent()
        self._spec = contract.id if contract is not None else "unknown"

    async def play(
        self,
        session: Session,
        seed: int,
        *,
        agent_seed: int | None = None,
        turn: WaitForTurn | None = None,
    ) -> Transcript:
        """One episode of this seed; `chance` makes the moves, where there is no oracle."""
        witness = RecordingSession(session, turn)
        dice = seed if agent_seed is None else agent_seed
        assignment = Assignment("check", self._spec, {"seed": seed}, dice)
        episode = await run_episode(
            witness, self._agent, assignment, limits=EpisodeLimits(max_turns=MAX_STEPS)
        )
        # A reward that is no number is for a check of its own to complain of.
        if episode.error is not None and episode.error.kind != BadEnvironment.__name__:
            raise EpisodeFailed(episode.error.text)
        if self.is_oracle and not witness.transcript.actions and not witness.transcript.done:
            raise EpisodeFailed(
                f"oracle() made no move on seed {seed}: it returned None.", RETURN_MOVE
            )
        return witness.transcript


class TurnOrder:
    """Lets several players move in turn, however long each thinks."""

    def __init__(self, players: int) -> None:
        self._active = list(range(players))
        self._next = 0
        self._turn_changed = asyncio.Condition()

    def waiter_for(self, player: int) -> WaitForTurn:
        async def turn() -> None:
            async with self._turn_changed:
                await self._turn_changed.wait_for(lambda: self._active[self._next] == player)
                self._next = (self._next + 1) % len(self._active)
                self._turn_changed.notify_all()

        return turn

    async def leave(self, player: int) -> None:
        """The player's episode is over."""
        async with self._turn_changed:
            place = self._active.index(player)
            self._active.remove(player)
            if place < self._next:
                self._next -= 1
            self._next %= max(1, len(self._active))
            self._turn_changed.notify_all()
