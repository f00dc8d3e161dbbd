"""The environment's own solution, as an agent: no key, no network.

It plays a copy of the environment in this process, in step with the real one: the same seed gives
the same episode everywhere, so its next move there is the right one here, also over a wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply
from ludus.data.messages import Message, build_tool_call_message
from ludus.data.tool_schema import ToolCall
from ludus.environment.error_mapping import raise_with_location, to_wire_error
from ludus.environment.registry import find_environment, is_url
from ludus.environment.runner import EnvironmentRunner
from ludus.environment.spec import EnvSpec
from ludus.errors import BadEnvironment, ConfigError, EnvironmentNotFound
from ludus.protocol.frames import action_payload


class OracleAgent(Agent):
    """Plays the solution of whatever environment it finds itself in."""

    provider = "oracle"

    async def prepare(self, environments: Sequence[str] = ()) -> None:
        for spec in environments:
            _find_with_oracle(spec)

    async def begin(self, context: EpisodeContext) -> Player:
        shadow = ShadowEnvironment(_find_with_oracle(context.environment))
        try:
            await shadow.reset(context.task)
        except BaseException:
            await shadow.close()
            raise
        return _OraclePlayer(shadow)


@lru_cache(maxsize=256)
def _find_with_oracle(spec: str) -> EnvSpec:
    """The environment on this machine, if it has a solution."""
    advice = "Choose who plays instead: --provider openai, anthropic, hf, random or human."
    if is_url(spec):
        raise ConfigError(f"{spec} does not say which environment it serves. {advice}")
    try:
        contract = find_environment(spec)
    except EnvironmentNotFound as error:
        raise ConfigError(f"The oracle plays what is installed here. {error} {advice}") from None
    if not ShadowEnvironment.has_oracle(contract):
        raise ConfigError(f"{spec} has no oracle. {advice}")
    return contract


class _OraclePlayer(Player):
    def __init__(self, shadow: ShadowEnvironment) -> None:
        self._shadow = shadow

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        call = await self._shadow.act()
        return Reply(build_tool_call_message(call, position=len(messages)))

    async def close(self) -> None:
        await self._shadow.close()


class ShadowEnvironment:
    """A copy of the environment that is played by its own oracle."""

    def __init__(self, contract: EnvSpec) -> None:
        self._contract = contract
        self._host: EnvironmentRunner | None = None

    @staticmethod
    def has_oracle(contract: EnvSpec) -> bool:
        """Whether the environment has a solution of its own."""
        oracle = getattr(contract.cls, "oracle", None)
        return oracle is not None and oracle.__module__ != "ludus.environment.base"

    async def reset(self, task: Mapping[str, Any]) -> None:
        """Begin the same episode as the real one; the task must hold a seed."""
        with raise_with_location():
            if self._host is None:
                self._host = EnvironmentRunner(self._contract)
                await self._host.start()
            await self._host.reset(task)

    async def act(self) -> ToolCall | None:
        """The next call, or None when nothing is left to do."""
        if self._host is None or not self._host.episode_active:
            return None
        with raise_with_location():
            try:
                action = await self._host.call_method("oracle")
            except Exception as error:
                raise to_wire_error(error, self._contract.cls) from error
            if action is None:
                return None
            call = await self._to_call(action)
            await self._host.call(call.name, call.arguments)
            return call

    async def close(self) -> None:
        if self._host is not None:
            await self._host.close()
            self._host = None

    async def _to_call(self, action: Any) -> ToolCall:
        if isinstance(action, ToolCall):
            return action
        assert self._host is not None
        tools = await self._host.tools()
        if len(tools) != 1:
            raise BadEnvironment(f"{self._contract.id}: oracle() must name a tool: ToolCall(…).")
        return ToolCall(name=tools[0].name, arguments=action_payload(action))
