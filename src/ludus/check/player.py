"""Playing whole episodes for the doctor, by the oracle where there is one, else by chance."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ludus.agents.arbitrary import arbitrary_call
from ludus.agents.oracle import Oracle
from ludus.client.session import Session, StepResult
from ludus.data.tools import ToolCall
from ludus.environment.contract import Contract

MAX_STEPS = 100
"""Where an episode is cut off that does not end by itself."""


@dataclass(slots=True)
class Transcript:
    """Everything that was seen and done in one episode."""

    results: list[StepResult[dict[str, Any]]] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        return [result.reward for result in self.results if result.reward is not None]

    @property
    def done(self) -> bool:
        return bool(self.results) and self.results[-1].done

    def as_facts(self) -> list[Any]:
        """What must be the same when the episode is the same."""
        seen = [
            (_lasting(result.observation), result.reward, result.done, result.error)
            for result in self.results
        ]
        return [seen, [(call.name, call.arguments) for call in self.calls]]


def _lasting(observation: Mapping[str, Any]) -> Any:
    return {key: value for key, value in observation.items() if key != "episode_id"}


class Player:
    """Plays one episode at a time on a session."""

    def __init__(self, contract: Contract | None) -> None:
        self._oracle = Oracle(contract) if contract and Oracle.known_to(contract) else None

    @property
    def is_oracle(self) -> bool:
        return self._oracle is not None

    async def play(self, session: Session, seed: int, *, chance: int | None = None) -> Transcript:
        """One episode of this seed; `chance` makes the moves, where there is no oracle."""
        episode = Transcript()
        await self.begin(session, seed, episode)
        dice = random.Random(seed if chance is None else chance)
        while not episode.done and len(episode.calls) < MAX_STEPS:
            if not await self.move(session, episode, dice):
                break
        return episode

    async def begin(self, session: Session, seed: int, episode: Transcript) -> None:
        if self._oracle is not None:
            await self._oracle.reset({"seed": seed})
        episode.results.append(await session.reset(seed=seed))

    async def move(self, session: Session, episode: Transcript, dice: random.Random) -> bool:
        """One step; False when the player has nothing left to do."""
        call = (
            await self._oracle.act()
            if self._oracle is not None
            else arbitrary_call(session.tools, dice)
        )
        if call is None:
            return False
        episode.calls.append(call)
        episode.results.append(await session.call(call.name, call.arguments))
        return True

    async def close(self) -> None:
        if self._oracle is not None:
            await self._oracle.close()
