"""An agent that plays an environment's own solution: no key, no network.

It runs a copy of the environment in this process, in step with the real one. The same seed gives
the same episode everywhere, so the copy's next step is right in the real one, also if it is remote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply
from ludus.agents.tool_calls import build_tool_call_message
from ludus.data.messages import Message
from ludus.data.tool_schema import ToolCall
from ludus.environment.base import Environment
from ludus.environment.error_mapping import raise_with_location, to_wire_error
from ludus.environment.registry import find_environment, is_remote
from ludus.environment.runner import EnvironmentRunner
from ludus.environment.spec import EnvSpec
from ludus.errors import BadEnvironment, ConfigError, EnvironmentNotFound
from ludus.protocol.frames import action_payload


class OracleAgent(Agent):
    """Plays the environment's `oracle()`."""

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
    """The installed environment, which must have an oracle."""
    hint = "Set `provider` to openai, anthropic, hf, random or human."
    if is_remote(spec):
        raise ConfigError(f"{spec} does not say which environment it serves. {hint}")
    try:
        env = find_environment(spec)
    except EnvironmentNotFound as error:
        raise ConfigError(f"The oracle needs an installed environment. {error} {hint}") from None
    if not ShadowEnvironment.has_oracle(env):
        raise ConfigError(f"{spec} has no oracle. {hint}")
    return env


class _OraclePlayer(Player):
    def __init__(self, shadow: ShadowEnvironment) -> None:
        self._shadow = shadow

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        call = await self._shadow.act()
        return Reply(build_tool_call_message(call, position=len(messages)))

    async def close(self) -> None:
        await self._shadow.close()


class ShadowEnvironment:
    """A local copy of the environment, played by its own oracle."""

    def __init__(self, env: EnvSpec) -> None:
        self._env = env
        self._runner: EnvironmentRunner | None = None

    @staticmethod
    def has_oracle(env: EnvSpec) -> bool:
        """Whether the class overrides `oracle`, and it plays this variant."""
        oracle = getattr(env.cls, "oracle", None)
        if oracle is None or oracle.__module__ == "ludus.environment.base":
            return False
        variants = env.cls.oracle_variants() if issubclass(env.cls, Environment) else None
        return variants is None or env.variant is None or env.variant in variants

    async def reset(self, task: Mapping[str, Any]) -> None:
        """Start the same episode as the real one; the task must hold a seed."""
        with raise_with_location():
            if self._runner is None:
                self._runner = EnvironmentRunner(self._env)
                await self._runner.start()
            await self._runner.reset(task)

    async def act(self) -> ToolCall | None:
        """The next call, or None when nothing is left to do."""
        if self._runner is None or not self._runner.episode_active:
            return None
        with raise_with_location():
            try:
                action = await self._runner.call_method("oracle")
            except Exception as error:
                raise to_wire_error(error, self._env.cls) from error
            if action is None:
                return None
            if isinstance(action, ToolCall):
                call = action
            else:
                tools = await self._runner.tools()
                if len(tools) != 1:
                    raise BadEnvironment(f"{self._env.id}: oracle() must name a tool: ToolCall(…).")
                call = ToolCall(name=tools[0].name, arguments=action_payload(action))
            await self._runner.call(call.name, call.arguments)
            return call

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.close()
            self._runner = None
