"""One live environment, driven from asyncio.

A session in process and a session on a server are both a host, so they behave alike: the same
guards, the same coercion, the same errors. Sockets and sessions are not its business.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

from ludus.data.tools import ToolSpec
from ludus.environment.contract import Contract
from ludus.environment.faults import blamed, is_fault, with_location, words_of
from ludus.environment.location import location_of
from ludus.environment.threads import Worker, Workers
from ludus.environment.tool_environment import as_observation
from ludus.errors import (
    EpisodeNotStarted,
    EpisodeOver,
    ExecutionFailed,
    FactoryFailed,
    InvalidAction,
    StepTimeout,
    WireError,
)
from ludus.protocol.render import render
from ludus.protocol.types import (
    CallToolObservation,
    ErrorCode,
    ListToolsObservation,
    Observation,
    ToolFault,
)

_workers = Workers()
# Its own numbers, because an environment may seed the global ones; and no system call for each.
_ids = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.seed)
_single_threads: dict[type, Worker] = {}


class Host:
    """An environment and the thread it lives in. One request at a time, in the order they come."""

    def __init__(self, contract: Contract, *, step_timeout: float | None = None) -> None:
        self.contract = contract
        self.step_timeout = step_timeout
        self.episode_id: str | None = None
        self.steps = 0
        self._environment: Any = None
        self._playing = not getattr(contract.cls, "needs_reset", True)
        self._tools = contract.tools
        self._own: Worker | None = None
        self._turn = asyncio.Lock()
        self._reset: Callable[..., Any]
        self._do: Callable[..., Any]
        self._lists_tools = contract.tools is not None or "type" not in contract.action.model_fields
        """Whether `list_tools` is answered here; MCP environments of OpenEnv's do it themselves."""
        self._under_way: asyncio.Future[Any] | None = None
        self._cheap = not contract.blocking
        self.instant = self._cheap and not contract.waits
        """Whether requests are answered on the loop without ever waiting."""

    async def start(self) -> None:
        """Build the environment."""
        if self.contract.own_thread and not self.contract.single_thread:
            self._own = Worker()
        try:
            # A stranger's constructor may do anything, also where its steps are cheap.
            run = self._run if self.contract.native else self._off_loop
            self._environment = await run(self.contract.factory)
            later = "_async" if self.contract.later else ""
            self._reset = getattr(self._environment, f"reset{later}")
            self._do = getattr(self._environment, f"step{later}")
        except BaseException as error:
            if self._own is not None:
                self._own.stop()
            if not is_fault(error):
                raise
            failed = FactoryFailed(
                f"{self.contract.spec} could not be built: {words_of(error)}",
                details={"factory_name": self.contract.cls.__name__},
            )
            raise with_location(failed, error, self.contract.cls.__module__) from error

    @property
    def environment(self) -> Any:
        return self._environment

    @property
    def playing(self) -> bool:
        """Whether an episode has begun and not ended."""
        return self._playing

    async def reset(self, task: Mapping[str, Any]) -> Observation:
        """Begin an episode."""
        async with self._turn:
            arguments = self._arguments(task)
            begin = self._reset
            return self._begun(task, await self._guarded(lambda: begin(**arguments), "reset"))

    async def step(self, data: Mapping[str, Any]) -> Observation:
        """Do what the wire's action says."""
        async with self._turn:
            if data.get("type") == "list_tools" and self._lists_tools:
                return ListToolsObservation(tools=list(await self._known_tools()))
            if data.get("type") == "call_tool" and not self.contract.named_calls:
                return await self._call_derived(data)
            return await self._act(self.contract.parse_action(data))

    def reset_now(self, task: Mapping[str, Any]) -> Observation:
        """`reset` for an instant host, without the machinery of waiting."""
        return self._begun(task, self._attempt(self._reset, **self._arguments(task)))

    def step_now(self, data: Mapping[str, Any]) -> Observation | None:
        """`step` for an instant host; None for an action that is more than a step."""
        kind = data.get("type")
        if kind == "list_tools" or (kind == "call_tool" and not self.contract.named_calls):
            return None
        action = self.contract.parse_action(data)
        self._require_episode()
        return self._seen(self._attempt(self._do, action))

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Call a tool by name; the answer is always a `CallToolObservation`."""
        return await self.step({"type": "call_tool", "tool_name": name, "arguments": arguments})

    async def tools(self) -> tuple[ToolSpec, ...]:
        """What a model may call. Needs no episode."""
        async with self._turn:
            return await self._known_tools()

    async def _known_tools(self) -> tuple[ToolSpec, ...]:
        if self._tools is None:
            module = __import__(self.contract.action.__module__, fromlist=["ListToolsAction"])
            listed = await self._guarded(lambda: self._do(module.ListToolsAction()), "list_tools")
            self._tools = tuple(
                ToolSpec.model_validate(tool.model_dump(mode="json")) for tool in listed.tools
            )
        return self._tools

    async def state(self) -> dict[str, Any]:
        """The state as the wire has it."""
        async with self._turn:
            found = await self._guarded(lambda: self._environment.state, "state")
        try:
            state = (
                found.model_dump(mode="json") if hasattr(found, "model_dump") else dict(found or {})
            )
        except (TypeError, ValueError) as error:
            raise ExecutionFailed(f"The state is no mapping: {words_of(error)}") from error
        if self.contract.native:
            state |= {"episode_id": self.episode_id, "step_count": self.steps}
        return state

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call one of the environment's task methods; `NotImplementedError` where it has none."""
        found = getattr(self._environment, method, None)
        if not callable(found):
            raise NotImplementedError(f"{self.contract.spec} has no {method}.")
        async with self._turn:
            try:
                return await self._run(lambda: found(*arguments))
            except Exception:
                raise
            except BaseException as error:
                raise blamed(error, self.contract.cls) from error

    async def close(self) -> None:
        """Give the environment back, without waiting for a step that hangs.

        A step that was abandoned may still be running: the environment is closed after it, in the
        background, and never beside it.
        """
        self._playing = False
        environment, self._environment = self._environment, None
        if environment is None:
            return
        if self._under_way is not None and not self._under_way.done():
            loop = asyncio.get_running_loop()
            self._under_way.add_done_callback(
                lambda _: _keep(loop.create_task(self._shut(environment)))
            )
        else:
            await self._shut(environment)

    async def _shut(self, environment: Any) -> None:
        try:
            if callable(close := getattr(environment, "close", None)):
                await self._run(close)
        except BaseException as error:
            # It is going away in any case, and what it played is long recorded.
            if not is_fault(error):
                raise
        finally:
            if self._own is not None:
                self._own.stop()

    async def _act(self, action: Any) -> Observation:
        self._require_episode()
        return self._seen(await self._guarded(lambda: self._do(action), "step"))

    def _require_episode(self) -> None:
        if self._playing or not self.contract.native:
            return
        if self.episode_id is None:
            raise EpisodeNotStarted("No episode is running: send a reset before the first step.")
        raise EpisodeOver("The episode is over: send a reset to begin another.")

    def _begun(self, task: Mapping[str, Any], value: Any) -> Observation:
        given = task.get("episode_id")
        self.episode_id = str(given) if given is not None else f"{_ids.getrandbits(128):032x}"
        self.steps = 0
        if value is None:
            raise self._nothing_shown()
        observation = as_observation(value)
        self._playing = not observation.done
        return self._checked(observation)

    def _nothing_shown(self) -> ExecutionFailed:
        failed = ExecutionFailed(
            "reset returned None, and must return what the model is shown first: "
            "text or an Observation."
        )
        failed.author_line = f"{location_of(self._reset)}: {failed}"
        return failed

    def _seen(self, observation: Observation) -> Observation:
        self._checked(observation)
        if vars(observation).get("error") is None:
            self.steps += 1
        self._playing = not observation.done
        return observation

    async def _call_derived(self, data: Mapping[str, Any]) -> Observation:
        """A tool call on a typed environment: the tool that was derived from its action."""
        (tool,) = await self._known_tools()
        name, arguments = data.get("tool_name"), data.get("arguments", {})
        if name != tool.name or not isinstance(arguments, Mapping):
            message = f"No tool is named {name!r}. There is: {tool.name}."
            fault = ToolFault(error_type="tool_not_found", message=message)
            return CallToolObservation(tool_name=str(name), error=fault)
        try:
            action = self.contract.parse_action(arguments)
        except InvalidAction as error:
            fault = ToolFault(error_type="invalid_args", message=str(error))
            return CallToolObservation(tool_name=tool.name, error=fault)
        seen = await self._act(action)
        content = render(seen.model_dump(mode="json", exclude={"reward", "done"}))
        result: Any = content
        if not isinstance(content, str):
            result = {"content": [b.model_dump(mode="json", by_alias=True) for b in content]}
        return CallToolObservation(
            tool_name=tool.name,
            result=result,
            reward=seen.reward,
            done=seen.done,
            metadata=seen.metadata,
        )

    def _arguments(self, task: Mapping[str, Any]) -> dict[str, Any]:
        return self.contract.parse_task(self._chosen(task))

    def _chosen(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace `split` and `index` by the task they name, unless reset takes them itself."""
        if {"split", "index"} <= task.keys() and "split" not in self.contract.task_arguments:
            rest = {key: value for key, value in task.items() if key not in ("split", "index")}
            try:
                chosen = self._environment.get_task(task["split"], task["index"])
            except (AttributeError, IndexError, KeyError) as error:
                message = f"No task {task['index']!r} in split {task['split']!r}: {words_of(error)}"
                raise InvalidAction(message) from None
            except BaseException as error:
                raise blamed(error, self.contract.cls) from error
            return {**chosen, **rest}
        return task

    async def _run(self, call: Callable[[], Any]) -> Any:
        if self._cheap:
            value = call()
        else:
            self._under_way = self._off_loop(call)
            value = await asyncio.shield(self._under_way)
        return await value if inspect.isawaitable(value) else value

    def _off_loop(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        if self.contract.single_thread:
            if self.contract.cls not in _single_threads:
                _single_threads[self.contract.cls] = Worker()
            return _single_threads[self.contract.cls].submit(call)
        return (self._own or _workers).submit(call)

    async def _guarded(self, call: Callable[[], Any], what: str) -> Any:
        """Run it within the time-out, and turn whatever it raises into the wire's errors."""
        self._require_open()
        try:
            return await self._timed(call, what)
        except BaseException as error:
            raise blamed(error, self.contract.cls) from error

    def _attempt(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call it, and turn whatever it raises into the wire's errors."""
        self._require_open()
        try:
            return method(*arguments, **named)
        except BaseException as error:
            raise blamed(error, self.contract.cls) from error

    def _require_open(self) -> None:
        if self._environment is None:
            raise WireError("The session is closed.", ErrorCode.SESSION_ERROR)

    async def _timed(self, call: Callable[[], Any], what: str) -> Any:
        deadline = asyncio.timeout(self.step_timeout)
        try:
            async with deadline:
                return await self._run(call)
        except TimeoutError:
            if not deadline.expired():
                raise
            self._playing = False
            raise StepTimeout(
                f"The {what} took longer than {self.step_timeout:g} s; the session is closed. "
                "Raise --step-timeout if it needs more."
            ) from None

    def _checked(self, observation: Observation) -> Observation:
        reward = observation.reward
        if reward is not None and not math.isfinite(reward):
            raise ExecutionFailed(
                f"{self.contract.spec} gave the reward {reward!r}: a reward is a finite number."
            )
        return observation


_background: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    """Hold on to a task that nobody awaits; the loop itself does not."""
    _background.add(task)
    task.add_done_callback(_background.discard)
