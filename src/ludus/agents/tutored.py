"""An agent that plays while a tutor says in every state what it would have replied (DAgger)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from ludus.agents.agent import (
    NO_ENVIRONMENTS,
    Agent,
    EnvironmentTools,
    EpisodeContext,
    Player,
    Reply,
)
from ludus.agents.combined_agent import CombinedAgent
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError


class TutoredAgent(CombinedAgent):
    """Plays like `student`; each reply carries the tutor's reply in the same state.

    The tutor sees the messages of the student's episode, and none of its own replies.
    """

    def __init__(self, student: Agent, tutor: Agent) -> None:
        super().__init__(student, tutor)

    def describe(self) -> JsonObject:
        return {**super().describe(), "tutor": self.agents[1].describe()}

    @property
    def is_stateless(self) -> bool:
        return type(self) is TutoredAgent and all(agent.is_stateless for agent in self.agents)

    async def prepare(self, environments: EnvironmentTools = NO_ENVIRONMENTS) -> None:
        student, tutor = self.agents
        try:
            await tutor.prepare(environments)
        except ConfigError as error:
            raise ConfigError(f"The tutor cannot teach this: {error}") from None
        await student.prepare(environments)

    async def begin(self, context: EpisodeContext) -> Player:
        student, tutor = self.agents
        player = await student.begin(context)
        try:
            return _TutoredPlayer(player, await tutor.begin(context))
        except BaseException:
            await player.close()
            raise


class _TutoredPlayer(Player):
    def __init__(self, student: Player, tutor: Player) -> None:
        self._student = student
        self._tutor = tutor

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        # The caller appends to its list only after both have replied.
        advice = asyncio.create_task(self._tutor.act(messages, max_tokens=max_tokens))
        try:
            reply = await self._student.act(messages, max_tokens=max_tokens)
            return replace(reply, tutor=await advice)
        except BaseException:
            # Nothing of the tutor may run any more when its player is closed.
            advice.cancel()
            await asyncio.gather(advice, return_exceptions=True)
            raise

    async def close(self) -> None:
        await self._student.close()
        await self._tutor.close()
