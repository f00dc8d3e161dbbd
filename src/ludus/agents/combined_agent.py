"""The base of agents that are made of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ludus.agents.agent import NO_ENVIRONMENTS, Agent, EnvironmentTools
from ludus.data.tool_schema import JsonObject


class CombinedAgent(Agent):
    """Delegates to its agents, of which the first one plays; subclasses say how they reply."""

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
        return all(agent.is_stateless for agent in self.agents)

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
