"""Agents that are made of others: with random actions, or beside a tutor."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ludus.agents.agent import (
    NO_ENVIRONMENTS,
    Agent,
    EnvironmentTools,
    EpisodeContext,
    Player,
    Reply,
    build_tool_call_message,
)
from ludus.agents.oracle import OracleEnvironment, missing_tools
from ludus.agents.scripted import random_call
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject, ToolCall, ToolSpec
from ludus.environment.registry import find_environment, is_remote
from ludus.environment.spec import EnvSpec
from ludus.errors import ConfigError, EnvironmentNotFound


class CombinedAgent(Agent):
    """Delegates to its agents; the first one plays. Subclasses define how they reply."""

    def __init__(self, *agents: Agent) -> None:
        self.agents = agents
        self.provider = agents[0].provider

    def describe(self) -> JsonObject:
        return self.agents[0].describe()

    def check(self) -> None:
        for agent in self.agents:
            agent.check()

    async def prepare(self, environments: EnvironmentTools = NO_ENVIRONMENTS) -> None:
        for agent in self.agents:
            await agent.prepare(environments)

    async def close(self) -> None:
        for agent in self.agents:
            await agent.close()

    @property
    def concurrency_limit(self) -> int | None:
        limits = (agent.concurrency_limit for agent in self.agents)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def is_stateless(self) -> bool:
        own = type(self) in (ExploringAgent, TutoredAgent)
        return own and all(agent.is_stateless for agent in self.agents)

    @property
    def local_model(self) -> str | None:
        models = [agent.local_model for agent in self.agents if agent.local_model is not None]
        return " and ".join(dict.fromkeys(models)) or None

    @property
    def sampled_tokens(self) -> int | None:
        counts = [agent.sampled_tokens for agent in self.agents]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    @property
    def retry_after_s(self) -> float:
        return max(agent.retry_after_s for agent in self.agents)

    @property
    def stall_expected(self) -> bool:
        return any(agent.stall_expected for agent in self.agents)

    @property
    def has_price(self) -> bool:
        return all(agent.has_price for agent in self.agents)

    @property
    def faults(self) -> Mapping[str, int]:
        return sum((Counter(agent.faults) for agent in self.agents), Counter[str]())


class ExploringAgent(CombinedAgent):
    """Plays like `agent`, but a turn's action is random with the given probability.

    It comes from the environment's `random_action`, also for a server of an installed environment.
    Without one, or if the server has other tools, it is any call that the tools' schemas allow. It
    is reproducible from the seed of the episode and its number within the group.
    """

    def __init__(self, agent: Agent, probability: float) -> None:
        super().__init__(agent)
        self.probability = probability

    def describe(self) -> JsonObject:
        return {**super().describe(), "explore": self.probability}

    async def begin(self, context: EpisodeContext) -> Player:
        env = _find_with_random_action(context.environment)
        shadow = None
        if env is not None and not missing_tools(env, context.tools):
            shadow = OracleEnvironment(env, runner=context.runner)
            await shadow.reset(context.task)
        try:
            player = await self.agents[0].begin(context)
        except BaseException:
            if shadow is not None:
                await shadow.close()
            raise
        rng = random.Random(f"explore/{context.seed}/{context.member}")
        return _ExploringPlayer(player, self.probability, rng, context.tools, shadow)


@lru_cache(maxsize=256)
def _find_with_random_action(spec: str) -> EnvSpec | None:
    """The environment, if it is installed and defines `random_action`."""
    try:
        env = None if is_remote(spec) else find_environment(spec)
    except EnvironmentNotFound:
        return None
    return env if env is not None and OracleEnvironment.has_random_action(env) else None


@dataclass(slots=True)
class _ExploringPlayer(Player):
    player: Player
    probability: float
    rng: random.Random
    tools: Sequence[ToolSpec]
    shadow: OracleEnvironment | None

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        if self.rng.random() >= self.probability:
            return await self.player.act(messages, max_tokens=max_tokens)
        call: ToolCall | None = None
        if self.shadow is not None:
            await self.shadow.follow_messages(messages)
            call = await self.shadow.random_action(self.rng)
        call = call or random_call(self.tools, self.rng)
        return Reply(build_tool_call_message(call, position=len(messages)), explored=True)

    async def close(self) -> None:
        await self.player.close()
        if self.shadow is not None:
            await self.shadow.close()


class TutoredAgent(CombinedAgent):
    """Plays like `student`; each reply carries the tutor's reply in the same state.

    The tutor sees the messages of the student's episode, but not its own replies.
    """

    def __init__(self, student: Agent, tutor: Agent) -> None:
        super().__init__(student, tutor)

    def describe(self) -> JsonObject:
        return {**super().describe(), "tutor": self.agents[1].describe()}

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


@dataclass(slots=True)
class _TutoredPlayer(Player):
    student: Player
    tutor: Player

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        # The caller appends to its list only after both have replied.
        advice = asyncio.create_task(self.tutor.act(messages, max_tokens=max_tokens))
        try:
            reply = await self.student.act(messages, max_tokens=max_tokens)
            return replace(reply, tutor=await advice)
        except BaseException:
            # Nothing of the tutor may run any more when its player is closed.
            advice.cancel()
            await asyncio.gather(advice, return_exceptions=True)
            raise

    async def close(self) -> None:
        await self.student.close()
        await self.tutor.close()
