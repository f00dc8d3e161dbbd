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

from ludus.data.tool_schema import ToolSpec
from ludus.environment.error_location import function_location
from ludus.environment.error_mapping import (
    attach_location,
    describe_exception,
    is_author_error,
    to_wire_error,
)
from ludus.environment.spec import EnvSpec
from ludus.environment.tool_environment import as_observation
from ludus.environment.worker_threads import WorkerThread, WorkerThreads
from ludus.errors import (
    EpisodeNotStarted,
    EpisodeOver,
    ExecutionFailed,
    FactoryFailed,
    InvalidAction,
    StepTimeout,
    WireError,
)
from ludus.protocol.observation_text import render_observation
from ludus.protocol.types import (
    CallToolObservation,
    ErrorCode,
    ListToolsObservation,
    Observation,
    ToolFault,
)

_workers = WorkerThreads()
# Its own numbers, because an environment may seed the global ones; and no system call for each.
_id_rng = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_id_rng.seed)
_single_thread_workers: dict[type, WorkerThread] = {}


class EnvironmentRunner:
    """An environment and the thread it lives in. One request at a time, in the order they come."""

    def __init__(self, env_spec: EnvSpec, *, step_timeout: float | None = None) -> None:
        self.env_spec = env_spec
        self.step_timeout = step_timeout
        self.episode_id: str | None = None
        self.steps = 0
        self._environment: Any = None
        self._episode_active = not getattr(env_spec.cls, "needs_reset", True)
        self._tools = env_spec.tools
        self._own_thread: WorkerThread | None = None
        self._request_lock = asyncio.Lock()
        self._reset: Callable[..., Any]
        self._step: Callable[..., Any]
        self._answers_list_tools = (
            env_spec.tools is not None or "type" not in env_spec.action.model_fields
        )
        """Whether `list_tools` is answered here; MCP environments of OpenEnv's do it themselves."""
        self._running_call: asyncio.Future[Any] | None = None
        self._runs_on_loop = not env_spec.blocking
        self.instant = self._runs_on_loop and not env_spec.is_async
        """Whether requests are answered on the loop without ever waiting."""

    async def start(self) -> None:
        """Build the environment."""
        if self.env_spec.own_thread and not self.env_spec.single_thread:
            self._own_thread = WorkerThread()
        try:
            # A stranger's constructor may do anything, also where its steps are cheap.
            run = self._run if self.env_spec.native else self._run_in_thread
            self._environment = await run(self.env_spec.factory)
            later = "_async" if self.env_spec.later else ""
            self._reset = getattr(self._environment, f"reset{later}")
            self._step = getattr(self._environment, f"step{later}")
        except BaseException as error:
            if self._own_thread is not None:
                self._own_thread.stop()
            if not is_author_error(error):
                raise
            failed = FactoryFailed(
                f"{self.env_spec.id} could not be built: {describe_exception(error)}",
                details={"factory_name": self.env_spec.cls.__name__},
            )
            raise attach_location(failed, error, self.env_spec.cls.__module__) from error

    @property
    def environment(self) -> Any:
        return self._environment

    @property
    def episode_active(self) -> bool:
        """Whether an episode has begun and not ended."""
        return self._episode_active

    async def reset(self, task: Mapping[str, Any]) -> Observation:
        """Begin an episode."""
        async with self._request_lock:
            arguments = self._reset_arguments(task)
            begin = self._reset
            return self._finish_reset(
                task, await self._call_guarded(lambda: begin(**arguments), "reset")
            )

    async def step(self, data: Mapping[str, Any]) -> Observation:
        """Do what the wire's action says."""
        async with self._request_lock:
            if data.get("type") == "list_tools" and self._answers_list_tools:
                return ListToolsObservation(tools=list(await self._load_tools()))
            if data.get("type") == "call_tool" and not self.env_spec.named_calls:
                return await self._call_derived_tool(data)
            return await self._run_step(self.env_spec.parse_action(data))

    def reset_sync(self, task: Mapping[str, Any]) -> Observation:
        """`reset` for an instant host, without the machinery of waiting."""
        return self._finish_reset(task, self._call_sync(self._reset, **self._reset_arguments(task)))

    def step_sync(self, data: Mapping[str, Any]) -> Observation | None:
        """`step` for an instant host; None for an action that is more than a step."""
        kind = data.get("type")
        if kind == "list_tools" or (kind == "call_tool" and not self.env_spec.named_calls):
            return None
        action = self.env_spec.parse_action(data)
        self._require_episode()
        return self._finish_step(self._call_sync(self._step, action))

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Call a tool by name; the answer is always a `CallToolObservation`."""
        return await self.step({"type": "call_tool", "tool_name": name, "arguments": arguments})

    async def tools(self) -> tuple[ToolSpec, ...]:
        """What a model may call. Needs no episode."""
        async with self._request_lock:
            return await self._load_tools()

    async def _load_tools(self) -> tuple[ToolSpec, ...]:
        if self._tools is None:
            module = __import__(self.env_spec.action.__module__, fromlist=["ListToolsAction"])
            listed = await self._call_guarded(
                lambda: self._step(module.ListToolsAction()), "list_tools"
            )
            self._tools = tuple(
                ToolSpec.model_validate(tool.model_dump(mode="json")) for tool in listed.tools
            )
        return self._tools

    async def state(self) -> dict[str, Any]:
        """The state as the wire has it."""
        async with self._request_lock:
            found = await self._call_guarded(lambda: self._environment.state, "state")
        try:
            state = (
                found.model_dump(mode="json") if hasattr(found, "model_dump") else dict(found or {})
            )
        except (TypeError, ValueError) as error:
            raise ExecutionFailed(
                f"The state is no mapping: {describe_exception(error)}"
            ) from error
        if self.env_spec.native:
            state |= {"episode_id": self.episode_id, "step_count": self.steps}
        return state

    async def call_method(self, method: str, *arguments: Any) -> Any:
        """Call one of the environment's task methods; `NotImplementedError` where it has none."""
        found = getattr(self._environment, method, None)
        if not callable(found):
            raise NotImplementedError(f"{self.env_spec.id} has no {method}.")
        async with self._request_lock:
            try:
                return await self._run(lambda: found(*arguments))
            except Exception:
                raise
            except BaseException as error:
                raise to_wire_error(error, self.env_spec.cls) from error

    async def close(self) -> None:
        """Give the environment back, without waiting for a step that hangs.

        A step that was abandoned may still be running: the environment is closed after it, in the
        background, and never beside it.
        """
        self._episode_active = False
        environment, self._environment = self._environment, None
        if environment is None:
            return
        if self._running_call is not None and not self._running_call.done():
            loop = asyncio.get_running_loop()
            self._running_call.add_done_callback(
                lambda _: _keep_reference(loop.create_task(self._close_environment(environment)))
            )
        else:
            await self._close_environment(environment)

    async def _close_environment(self, environment: Any) -> None:
        try:
            if callable(close := getattr(environment, "close", None)):
                await self._run(close)
        except BaseException as error:
            # It is going away in any case, and what it played is long recorded.
            if not is_author_error(error):
                raise
        finally:
            if self._own_thread is not None:
                self._own_thread.stop()

    async def _run_step(self, action: Any) -> Observation:
        self._require_episode()
        return self._finish_step(await self._call_guarded(lambda: self._step(action), "step"))

    def _require_episode(self) -> None:
        if self._episode_active or not self.env_spec.native:
            return
        if self.episode_id is None:
            raise EpisodeNotStarted("No episode is running: send a reset before the first step.")
        raise EpisodeOver("The episode is over: send a reset to begin another.")

    def _finish_reset(self, task: Mapping[str, Any], value: Any) -> Observation:
        given = task.get("episode_id")
        self.episode_id = str(given) if given is not None else f"{_id_rng.getrandbits(128):032x}"
        self.steps = 0
        if value is None:
            raise self._missing_observation_error()
        observation = as_observation(value)
        self._episode_active = not observation.done
        return self._check_reward(observation)

    def _missing_observation_error(self) -> ExecutionFailed:
        failed = ExecutionFailed(
            "reset returned None, and must return what the model is shown first: "
            "text or an Observation."
        )
        failed.author_line = f"{function_location(self._reset)}: {failed}"
        return failed

    def _finish_step(self, observation: Observation) -> Observation:
        self._check_reward(observation)
        if vars(observation).get("error") is None:
            self.steps += 1
        self._episode_active = not observation.done
        return observation

    async def _call_derived_tool(self, data: Mapping[str, Any]) -> Observation:
        """A tool call on a typed environment: the tool that was derived from its action."""
        (tool,) = await self._load_tools()
        name, arguments = data.get("tool_name"), data.get("arguments", {})
        if name != tool.name or not isinstance(arguments, Mapping):
            message = f"No tool is named {name!r}. There is: {tool.name}."
            fault = ToolFault(error_type="tool_not_found", message=message)
            return CallToolObservation(tool_name=str(name), error=fault)
        try:
            action = self.env_spec.parse_action(arguments)
        except InvalidAction as error:
            fault = ToolFault(error_type="invalid_args", message=str(error))
            return CallToolObservation(tool_name=tool.name, error=fault)
        seen = await self._run_step(action)
        content = render_observation(seen.model_dump(mode="json", exclude={"reward", "done"}))
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

    def _reset_arguments(self, task: Mapping[str, Any]) -> dict[str, Any]:
        return self.env_spec.parse_task(self._resolve_task(task))

    def _resolve_task(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace `split` and `index` by the task they name, unless reset takes them itself."""
        if {"split", "index"} <= task.keys() and "split" not in self.env_spec.task_arguments:
            rest = {key: value for key, value in task.items() if key not in ("split", "index")}
            try:
                chosen = self._environment.get_task(task["split"], task["index"])
            except (AttributeError, IndexError, KeyError) as error:
                message = f"No task {task['index']!r} in split {task['split']!r}: {describe_exception(error)}"
                raise InvalidAction(message) from None
            except BaseException as error:
                raise to_wire_error(error, self.env_spec.cls) from error
            return {**chosen, **rest}
        return task

    async def _run(self, call: Callable[[], Any]) -> Any:
        if self._runs_on_loop:
            value = call()
        else:
            self._running_call = self._run_in_thread(call)
            value = await asyncio.shield(self._running_call)
        return await value if inspect.isawaitable(value) else value

    def _run_in_thread(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        if self.env_spec.single_thread:
            if self.env_spec.cls not in _single_thread_workers:
                _single_thread_workers[self.env_spec.cls] = WorkerThread()
            return _single_thread_workers[self.env_spec.cls].submit(call)
        return (self._own_thread or _workers).submit(call)

    async def _call_guarded(self, call: Callable[[], Any], what: str) -> Any:
        """Run it within the time-out, and turn whatever it raises into the wire's errors."""
        self._require_open()
        try:
            return await self._call_with_timeout(call, what)
        except BaseException as error:
            raise to_wire_error(error, self.env_spec.cls) from error

    def _call_sync(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call it, and turn whatever it raises into the wire's errors."""
        self._require_open()
        try:
            return method(*arguments, **named)
        except BaseException as error:
            raise to_wire_error(error, self.env_spec.cls) from error

    def _require_open(self) -> None:
        if self._environment is None:
            raise WireError("The session is closed.", ErrorCode.SESSION_ERROR)

    async def _call_with_timeout(self, call: Callable[[], Any], what: str) -> Any:
        deadline = asyncio.timeout(self.step_timeout)
        try:
            async with deadline:
                return await self._run(call)
        except TimeoutError:
            if not deadline.expired():
                raise
            self._episode_active = False
            raise StepTimeout(
                f"The {what} took longer than {self.step_timeout:g} s; the session is closed. "
                "Raise --step-timeout if it needs more."
            ) from None

    def _check_reward(self, observation: Observation) -> Observation:
        reward = observation.reward
        if reward is not None and not math.isfinite(reward):
            raise ExecutionFailed(
                f"{self.env_spec.id} gave the reward {reward!r}: a reward is a finite number."
            )
        return observation


_background_tasks: set[asyncio.Task[None]] = set()


def _keep_reference(task: asyncio.Task[None]) -> None:
    """Hold on to a task that nobody awaits; the loop itself does not."""
    _background_tasks.add(task)
    task.add_done_callback(_background_tasks.discard)
