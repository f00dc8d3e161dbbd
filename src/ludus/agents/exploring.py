"""An agent that now and then makes a random legal action instead of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply
from ludus.agents.combined_agent import CombinedAgent
from ludus.agents.oracle import ShadowEnvironment, missing_tools
from ludus.agents.random_agent import random_call
from ludus.agents.tool_calls import build_tool_call_message
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject, ToolCall, ToolSpec
from ludus.environment.registry import find_environment, is_remote
from ludus.environment.spec import EnvSpec
from ludus.errors import EnvironmentNotFound


class ExploringAgent(CombinedAgent):
    """Plays like `agent`, but a turn's action is random with the given probability.

    The environment's own `random_action` makes it, also for a server of an installed environment;
    where there is none, or the server has other tools, it is a random call that is valid for the
    tools' schemas. It is reproducible from the seed of the episode and its number within the group.
    """

    def __init__(self, agent: Agent, probability: float) -> None:
        super().__init__(agent)
        self.probability = probability

    def describe(self) -> JsonObject:
        return {**super().describe(), "explore": self.probability}

    @property
    def is_stateless(self) -> bool:
        return type(self) is ExploringAgent and self.agents[0].is_stateless

    async def begin(self, context: EpisodeContext) -> Player:
        env = _find_with_random_action(context.environment)
        shadow = None
        if env is not None and not missing_tools(env, context.tools):
            shadow = ShadowEnvironment(env, runner=context.runner)
        if shadow is not None:
            await shadow.reset(context.task)
        rng = random.Random(f"explore/{context.seed}/{context.member}")
        try:
            player = await self.agents[0].begin(context)
        except BaseException:
            if shadow is not None:
                await shadow.close()
            raise
        return _ExploringPlayer(player, self.probability, rng, context.tools, shadow)


@lru_cache(maxsize=256)
def _find_with_random_action(spec: str) -> EnvSpec | None:
    """The environment, if it is installed and has random actions of its own."""
    try:
        env = None if is_remote(spec) else find_environment(spec)
    except EnvironmentNotFound:
        return None
    return env if env is not None and ShadowEnvironment.has_random_action(env) else None


class _ExploringPlayer(Player):
    def __init__(
        self,
        player: Player,
        probability: float,
        rng: random.Random,
        tools: Sequence[ToolSpec],
        shadow: ShadowEnvironment | None,
    ) -> None:
        self._player = player
        self._probability = probability
        self._rng = rng
        self._tools = tools
        self._shadow = shadow

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        if self._rng.random() >= self._probability:
            return await self._player.act(messages, max_tokens=max_tokens)
        call: ToolCall | None = None
        if self._shadow is not None:
            await self._shadow.follow_messages(messages)
            call = await self._shadow.random_action(self._rng)
        call = call or random_call(self._tools, self._rng)
        return Reply(build_tool_call_message(call, position=len(messages)), explored=True)

    async def close(self) -> None:
        await self._player.close()
        if self._shadow is not None:
            await self._shadow.close()
