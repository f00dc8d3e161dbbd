"""Episodes for the checks: played by the oracle if there is one, else by random calls.

They are played by the usual loop, on a session that records its messages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from ludus.agents.agent import Agent
from ludus.agents.oracle import OracleAgent, OracleEnvironment
from ludus.client.session import Session
from ludus.data.episode import Episode
from ludus.data.tool_schema import JsonObject
from ludus.environment.spec import EnvSpec
from ludus.errors import (
    EPISODE_CONTINUES,
    BadEnvironment,
    CapacityReached,
    ExecutionFailed,
    LudusError,
)
from ludus.protocol.frames import action_payload
from ludus.protocol.types import StepResult
from ludus.rollout import Assignment, EpisodeLimits, run_episode

MAX_STEPS = 100
"""Limit of an episode that does not end by itself."""


@dataclass(slots=True)
class CheckTranscript:
    """All results and actions of one episode."""

    results: list[StepResult[JsonObject]] = field(default_factory=list)
    actions: list[JsonObject] = field(default_factory=list)

    @property
    def rewards(self) -> list[float]:
        return [result.reward for result in self.results if result.reward is not None]

    @property
    def total_reward(self) -> float:
        return math.fsum(self.rewards)

    @property
    def done(self) -> bool:
        return bool(self.results) and self.results[-1].done

    def serialize(self) -> bytes:
        """Return bytes that are equal for equal episodes, so without their ids."""
        results = [
            (
                {key: value for key, value in result.observation.items() if key != "episode_id"},
                result.reward,
                result.done,
                result.error,
            )
            for result in self.results
        ]
        # Not pydantic's, which cannot write a lone surrogate.
        return json.dumps(to_jsonable_python([results, self.actions])).encode()


class EpisodeFailed(LudusError):
    """An episode could not be played. `advice` replaces the check's own, if not empty."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class RecordingSession(Session):
    """Records results and actions of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.tools = session.tools
        self.calls_by_name = session.calls_by_name
        self.transcript = CheckTranscript()

    async def open(self) -> None:
        """Does nothing: the caller opens and closes the wrapped session."""

    async def close(self) -> None:
        """See `open`."""

    async def reset(self, /, **task: object) -> StepResult[JsonObject]:
        result = await self._session.reset(**task)
        self.transcript.results.append(result)
        return result

    async def step(self, action: Mapping[str, object] | BaseModel) -> StepResult[JsonObject]:
        self.transcript.actions.append(action_payload(action))
        try:
            result = await self._session.step(action)
        except ExecutionFailed as error:
            # A model would see the error; here it may be the author's mistake.
            error.details.pop(EPISODE_CONTINUES, None)
            raise
        self.transcript.results.append(result)
        return result

    async def state(self) -> JsonObject:
        return await self._session.state()


async def offers_oracle(env_spec: EnvSpec | None) -> bool:
    """Whether there is an oracle to play; a class may raise NotImplementedError for variants."""
    if env_spec is None or not OracleEnvironment.has_oracle(env_spec):
        return False
    shadow = OracleEnvironment(env_spec)
    try:
        await shadow.reset({"seed": 0})
        await shadow.propose()
    except LudusError as error:
        # Any other error is found when the oracle plays.
        return not isinstance(error.__cause__, NotImplementedError)
    finally:
        await shadow.close()
    return True


async def play_check_episode(
    session: Session,
    env_spec: EnvSpec | None,
    agent: Agent,
    seed: int,
    *,
    agent_seed: int | None = None,
    max_turns: int = MAX_STEPS,
) -> CheckTranscript:
    """Play an episode of a check; `agent_seed` (default `seed`) seeds random calls."""
    recorder, limits = RecordingSession(session), EpisodeLimits(max_turns=max_turns)
    environment = env_spec.id if env_spec is not None else "unknown"
    agent_seed = seed if agent_seed is None else agent_seed
    assignment = Assignment("check", environment, {"seed": seed}, agent_seed)
    episode = await run_episode(recorder, agent, assignment, limits=limits)
    transcript, error = recorder.transcript, episode.error
    # BadEnvironment after a move: a reward that is not finite, which has its own check.
    if error is not None and not (transcript.actions and error.kind == BadEnvironment.__name__):
        is_full = error.kind == CapacityReached.__name__
        raise (CapacityReached if is_full else EpisodeFailed)(error.text)
    if isinstance(agent, OracleAgent) and not transcript.done:
        _require_move(episode, transcript, seed)
    return transcript


def _require_move(episode: Episode, transcript: CheckTranscript, seed: int) -> None:
    """Raise if the oracle made no move, or none that the environment accepted."""
    steps = transcript.results[1:]
    if any(result.error is None for result in steps):
        return
    calls = [call for message in episode.messages for call in message.tool_calls or ()]
    if not calls:
        raise EpisodeFailed(
            f"oracle() made no move on seed {seed}: it returned None.",
            "Return the next ToolCall (or action) from oracle() until the episode is done.",
        )
    replies = [message.text for message in episode.messages if message.role == "tool"]
    call = f"{calls[0].function.name}({calls[0].function.arguments})"
    raise EpisodeFailed(
        f"every call of oracle() on seed {seed} was refused. The first was {call}: {replies[0]}",
        "Let oracle() return calls that the tools of the environment accept.",
    )
