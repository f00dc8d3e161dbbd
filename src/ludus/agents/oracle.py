"""An agent that plays an environment's own solution: no key, no network.

It asks the environment itself, if that runs in this process. For a remote one it runs a copy here,
in step with the real one: the same seed gives the same episode everywhere, so the copy's next step
is right there, too. The copy follows the calls actually made, so the solution also covers states
that other agents have reached.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pydantic import BaseModel

from ludus.agents.agent import (
    NO_ENVIRONMENTS,
    Agent,
    EnvironmentTools,
    EpisodeContext,
    Player,
    Reply,
    build_tool_call_message,
)
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject, ToolCall, ToolSpec, coerce_arguments, parse_arguments
from ludus.environment.base import Environment
from ludus.environment.faults import raise_with_location, to_wire_error
from ludus.environment.registry import find_environment, is_remote
from ludus.environment.runner import EnvironmentRunner
from ludus.environment.spec import EnvSpec
from ludus.errors import BadEnvironment, ConfigError, EnvironmentNotFound
from ludus.protocol.frames import action_payload

_OTHER_PROVIDERS = "Set `provider` to openai, anthropic, hf, random or human."


class OracleAgent(Agent):
    """Plays the environment's `oracle()`.

    Args:
        working: whether the oracle writes its working as text, if it can.
    """

    provider = "oracle"
    working: bool = False

    def __init__(self, *, working: bool = False) -> None:
        self.working = working

    def describe(self) -> JsonObject:
        return {**super().describe(), **({"working": True} if self.working else {})}

    @property
    def is_stateless(self) -> bool:
        return type(self) is OracleAgent

    async def prepare(self, environments: EnvironmentTools = NO_ENVIRONMENTS) -> None:
        for spec, tools in environments.items():
            _require_tools(spec, _find_with_oracle(spec), tools)

    async def begin(self, context: EpisodeContext) -> Player:
        env = _find_with_oracle(context.environment)
        _require_tools(context.environment, env, context.tools)
        shadow = OracleEnvironment(
            env,
            rng=random.Random(f"{context.seed}/{context.member}"),
            working=self.working,
            runner=context.runner,
        )
        await shadow.reset(context.task)
        return _OraclePlayer(shadow)


@lru_cache(maxsize=256)
def _find_with_oracle(spec: str) -> EnvSpec:
    """The installed environment, which must have an oracle."""
    if is_remote(spec):
        raise ConfigError(f"{spec} does not say which environment it serves. {_OTHER_PROVIDERS}")
    try:
        env = find_environment(spec)
    except EnvironmentNotFound as error:
        raise ConfigError(
            f"The oracle needs an installed environment. {error} {_OTHER_PROVIDERS}"
        ) from None
    if not OracleEnvironment.has_oracle(env):
        raise ConfigError(f"{spec} has no oracle. {_OTHER_PROVIDERS}")
    return env


def _require_tools(spec: str, env: EnvSpec, offered: Sequence[ToolSpec]) -> None:
    """Raise unless the oracle's tools are offered: servers may have others for the same game."""
    if missing := missing_tools(env, offered):
        names = ", ".join(tool.name for tool in offered)
        raise ConfigError(
            f"The oracle of {spec} calls {', '.join(missing)}, but the server offers {names}. "
            f"{_OTHER_PROVIDERS}"
        )


def missing_tools(env: EnvSpec, offered: Sequence[ToolSpec]) -> list[str]:
    """The tools of the environment that the session does not offer to the oracle."""
    known = {tool.name for tool in offered}
    return [tool.name for tool in env.tools or () if known and tool.name not in known]


@dataclass(slots=True)
class _OraclePlayer(Player):
    shadow: OracleEnvironment

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        await self.shadow.follow_messages(messages)
        call = await self.shadow.propose()
        return Reply(build_tool_call_message(call, position=len(messages)))

    async def close(self) -> None:
        await self.shadow.close()


class OracleEnvironment:
    """A local copy of the environment: proposes actions, and follows the real calls.

    With the `runner` of the real environment no copy is made: that is in the right state already.

    Args:
        rng: chooses among equally good actions of the oracle, if it varies them.
        working: whether the oracle writes its working, if it can.
    """

    def __init__(
        self,
        env: EnvSpec,
        *,
        rng: random.Random | None = None,
        working: bool = False,
        runner: EnvironmentRunner | None = None,
    ) -> None:
        self._env = env
        self._runner = runner
        self._is_copy = runner is None
        self._schemas: dict[str, JsonObject] = {}
        """Of the tools of a copy, by their names."""
        self._num_followed = 0
        """Messages whose calls were followed already."""
        self._oracle_options = {"rng": rng, "working": working}

    @staticmethod
    def has_oracle(env: EnvSpec) -> bool:
        """Whether the class overrides `oracle`, and it plays this variant."""
        if not _overrides(env.cls, "oracle"):
            return False
        variants = env.cls.oracle_variants() if issubclass(env.cls, Environment) else None
        return variants is None or env.variant is None or env.variant in variants

    @staticmethod
    def has_random_action(env: EnvSpec) -> bool:
        """Whether the class has a `random_action`: legal calls, not only valid for the schemas."""
        return _overrides(env.cls, "random_action")

    async def reset(self, task: Mapping[str, object]) -> None:
        """Start the same episode as the real one; the task must hold a seed."""
        if not self._is_copy:
            return
        self._num_followed = 0
        try:
            with raise_with_location():
                if self._runner is None:
                    self._runner = EnvironmentRunner(self._env)
                    await self._runner.start()
                    tools = await self._runner.tools()
                    self._schemas = {tool.name: tool.input_schema for tool in tools}
                await self._runner.reset(task)
        except BaseException:
            await self.close()
            raise

    async def propose(self) -> ToolCall | None:
        """The oracle's next call, or None when nothing is left to do. Changes no state."""
        names = _oracle_option_names(self._env.cls)
        options = {name: self._oracle_options[name] for name in names}
        return await self._ask("oracle", **options)

    async def random_action(self, rng: random.Random) -> ToolCall | None:
        """A random legal call; None if the environment has none. Changes no state."""
        return await self._ask("random_action", rng) if self.has_random_action(self._env) else None

    async def follow(self, call: ToolCall) -> None:
        """Apply the call that the real environment got. A malformed call changes nothing."""
        if self._runner is None or not self._is_copy or not self._runner.episode_active:
            return
        if (schema := self._schemas.get(call.name)) is not None:
            with raise_with_location():
                arguments = coerce_arguments(call.arguments, schema)
                await self._runner.call(call.name, arguments)

    async def follow_messages(self, messages: Sequence[Message]) -> None:
        """Follow the calls of an episode's messages that were not followed yet."""
        if not self._is_copy:
            return
        new, self._num_followed = messages[self._num_followed :], len(messages)
        for message in new:
            for call in message.tool_calls or ():
                arguments = parse_arguments(call.function.arguments)
                if arguments is not None:
                    await self.follow(ToolCall(name=call.function.name, arguments=arguments))

    async def close(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            if self._is_copy:
                await runner.close()

    async def _ask(self, method: str, *arguments: object, **options: object) -> ToolCall | None:
        """The call that a method of the environment returns, as an action or as a call."""
        if self._runner is None or not self._runner.episode_active:
            return None
        with raise_with_location():
            try:
                action = await self._runner.call_method(method, *arguments, **options)
            except Exception as error:
                raise to_wire_error(error, self._env.cls) from error
            if action is None or isinstance(action, ToolCall):
                return action
            if not isinstance(action, Mapping | BaseModel):
                raise BadEnvironment(
                    f"{self._env.id}: {method}() returned {action!r:.100}. Return a "
                    "ToolCall, the arguments of the only tool as a dictionary, or None."
                )
            tools = await self._runner.tools()
            if len(tools) != 1:
                raise BadEnvironment(f"{self._env.id}: {method}() must name a tool: ToolCall(…).")
            return ToolCall(name=tools[0].name, arguments=action_payload(action))


def _overrides(cls: type, name: str) -> bool:
    method = getattr(cls, name, None)
    return method is not None and method.__module__ != "ludus.environment.base"


@lru_cache(maxsize=256)
def _oracle_option_names(cls: type) -> tuple[str, ...]:
    """Which of the optional arguments the class's `oracle` takes."""
    parameters = inspect.signature(getattr(cls, "oracle", Environment.oracle)).parameters
    return tuple(name for name in ("rng", "working") if name in parameters)
