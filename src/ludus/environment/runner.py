"""Runs one environment from asyncio: threads, time-outs, validation and error mapping.

Local sessions and sessions on a server both use a runner, so that they behave the same.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import random
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from numbers import Real
from typing import Any, TypeVar

from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.environment.faults import is_author_error, locate_function, log_fault, to_wire_error
from ludus.environment.spec import EnvSpec
from ludus.environment.task_splits import key_digest
from ludus.environment.tool_environment import as_observation, as_tool_result, fault_result
from ludus.environment.worker_threads import WorkerThread, WorkerThreads
from ludus.errors import (
    EPISODE_CONTINUES,
    EpisodeNotStarted,
    EpisodeOver,
    ExecutionFailed,
    FactoryFailed,
    InvalidAction,
    LudusError,
    StepTimeout,
    WireError,
    describe_exception,
)
from ludus.protocol.types import ErrorCode, ListToolsObservation, Observation

T = TypeVar("T")

_workers = WorkerThreads()
# A separate generator, because an environment may seed the global one. Faster than uuid4, which
# needs a system call.
_id_rng = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_id_rng.seed)
_single_thread_workers: dict[type, WorkerThread] = {}
_closing_tasks: set[asyncio.Task[None]] = set()
"""References to tasks that nobody awaits: the event loop has only weak ones."""


class EnvironmentRunner:
    """An environment and its thread. Requests run one at a time, in order."""

    def __init__(self, env_spec: EnvSpec, *, step_timeout: float | None = None) -> None:
        self.env_spec = env_spec
        self.step_timeout = step_timeout
        self.episode_id: str | None = None
        self.steps = 0
        self.environment: Any = None
        """The instance; None before `start` and after `close`."""
        self.episode_active = not getattr(env_spec.cls, "needs_reset", True)
        """Whether an episode has started and not ended."""
        self._tools = env_spec.tools
        self._own_thread: WorkerThread | None = None
        self._mcp_session: AsyncExitStack | None = None
        self._reset: Callable[..., Any]
        self._step: Callable[..., Any]
        self._answers_list_tools = (
            env_spec.native
            or env_spec.tools is not None
            or "type" not in env_spec.action.model_fields
        )
        """Whether the runner answers `list_tools`; OpenEnv's MCP environments do it themselves."""
        self._running_call: asyncio.Future[object] | None = None
        self._runs_on_loop = not env_spec.blocking
        self.instant = self._runs_on_loop and not env_spec.is_async
        """Whether requests run on the event loop and never await."""
        self._request_lock: AbstractAsyncContextManager[None] = (
            nullcontext() if self.instant else asyncio.Lock()
        )

    async def start(self) -> None:
        """Build the environment."""
        spec = self.env_spec
        if spec.blocking and not (spec.native or spec.single_thread):
            # An environment of OpenEnv may need the same thread from construction to close.
            self._own_thread = WorkerThread()
        try:
            # The constructor of an environment of OpenEnv may block, even if its steps do not.
            on_loop = self.env_spec.native and self._runs_on_loop
            build = self._run(self.env_spec.factory) if on_loop else self._build_in_thread()
            self.environment = await build
            self._reset = getattr(self.environment, self.env_spec.method_name("reset"))
            self._step = getattr(self.environment, self.env_spec.method_name("step"))
            await self._open_mcp_session()
        except BaseException as error:
            if self.environment is not None:
                await self.close()
            # After a cancellation the thread still has to close what it builds.
            elif self._own_thread is not None and not isinstance(error, asyncio.CancelledError):
                self._own_thread.stop()
            if not is_author_error(error):
                raise
            # Raised on purpose: something is missing, and no line of code is wrong.
            is_own = isinstance(error, LudusError)
            reason = f"{self.env_spec.id} could not be built: {describe_exception(error)}"
            failed = FactoryFailed(
                str(error) if is_own else reason,
                details={"factory_name": self.env_spec.cls.__name__},
            )
            if not is_own:
                failed.author_line = log_fault(error, self.env_spec.cls.__module__)
            raise failed from error

    async def _open_mcp_session(self) -> None:
        """Connect the MCP client of an environment of OpenEnv until `close`.

        Its tools keep state for the connection (`ctx.set_state`), and each call would otherwise
        be a connection.
        """
        connect = getattr(self.environment, "mcp_session", None)
        # On the event loop, a step that is not async would wait for a tool that runs there too.
        waits_on_loop = self._runs_on_loop and "step" not in self.env_spec.async_methods
        if not callable(connect) or waits_on_loop:
            return
        self._mcp_session = AsyncExitStack()
        await self._mcp_session.enter_async_context(connect())
        loop = asyncio.get_running_loop()

        async def await_on_loop(method: Callable[..., Any], *arguments: object) -> Any:
            if asyncio.get_running_loop() is loop:
                return await method(*arguments)
            running = asyncio.run_coroutine_threadsafe(method(*arguments), loop)
            return await asyncio.wrap_future(running)

        # A step in a thread runs the tools on another event loop, but the connection can only
        # be used on this one.
        for name in ("_async_call_tool", "_async_list_tools"):
            bound = partial(await_on_loop, getattr(self.environment, name))
            setattr(self.environment, name, bound)

    async def reset(self, task: Mapping[str, object]) -> Observation:
        """Start an episode."""
        async with self._request_lock:
            arguments = self._reset_arguments(task)
            value = await self._call_guarded(lambda: self._reset(**arguments), "reset")
            episode_id = task.get("episode_id")
            if episode_id is None:
                episode_id = f"{_id_rng.getrandbits(128):032x}"
            self.episode_id = str(episode_id)
            self.steps = 0
            if value is None:
                error = ExecutionFailed(
                    "reset returned None; it must return the first observation: text or an "
                    "Observation."
                )
                error.author_line = f"{locate_function(self._reset)}: {error}"
                raise error
            observation = self._check_observation(value)
            turns = self.environment.max_turns if self.env_spec.native else None
            if isinstance(turns, int):
                observation.metadata["max_turns"] = turns
            if self.env_spec.has_task_key:
                key = await self._call_guarded(self.environment.task_key, "task_key")
                if key is not None:
                    observation.metadata["task_key"] = key_digest(str(key))
            if self.env_spec.has_progress:
                await self._add_progress(observation)
            return observation

    async def step(self, data: Mapping[str, object]) -> Observation:
        """Take an action, in the format of the wire."""
        async with self._request_lock:
            if data.get("type") == "list_tools" and self._answers_list_tools:
                return ListToolsObservation(tools=list(await self._load_tools()))
            if data.get("type") == "call_tool" and not self.env_spec.named_calls:
                return await self._call_derived_tool(data)
            return await self._run_step(self.env_spec.parse_action(data))

    def run_instantly(self, request: Coroutine[object, None, T]) -> T:
        """Run a request of an instant runner to its end, without an event loop."""
        try:
            request.send(None)
        except StopIteration as finished:
            result: T = finished.value
            return result
        request.close()
        raise ExecutionFailed(f"{self.env_spec.id} awaits; declare its methods with async def.")

    async def call(self, name: str, arguments: Mapping[str, object]) -> Observation:
        """Call a tool by name; the result is always a `CallToolObservation`."""
        return await self.step({"type": "call_tool", "tool_name": name, "arguments": arguments})

    async def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that a model may call. Needs no episode."""
        async with self._request_lock:
            return await self._load_tools()

    async def _load_tools(self) -> tuple[ToolSpec, ...]:
        if self._tools is None and self.env_spec.native:
            self._tools = tuple(await self._call_guarded(self.environment.list_tools, "list_tools"))
        elif self._tools is None:
            list_tools = sys.modules[self.env_spec.action.__module__].ListToolsAction()
            listed = await self._call_guarded(lambda: self._step(list_tools), "list_tools")
            dumped = (tool.model_dump(mode="json") for tool in listed.tools)
            self._tools = tuple(map(ToolSpec.model_validate, dumped))
        return self._tools

    async def state(self) -> JsonObject:
        """The state, in the format of the wire."""
        async with self._request_lock:
            value = await self._call_guarded(lambda: self.environment.state, "state")
        try:
            is_model = hasattr(value, "model_dump")
            state = value.model_dump(mode="json") if is_model else dict(value or {})
        except (TypeError, ValueError) as error:
            reason = describe_exception(error)
            raise ExecutionFailed(f"The state is not a mapping: {reason}") from error
        if self.env_spec.native:
            state |= {"episode_id": self.episode_id, "step_count": self.steps}
        return state

    async def call_method(self, method: str, *arguments: object, **named: object) -> Any:
        """Call a method of the environment; raises `NotImplementedError` if it has none."""
        function = getattr(self.environment, method, None)
        if not callable(function):
            raise NotImplementedError(f"{self.env_spec.id} does not implement {method}().")
        async with self._request_lock:
            try:
                return await self._run(lambda: function(*arguments, **named))
            except Exception:
                raise
            except BaseException as error:
                raise to_wire_error(error, self.env_spec.cls) from error

    async def close(self) -> None:
        """Close the environment, without waiting for a step that hangs.

        A step that timed out may still be running. The environment is then closed in the
        background once that step returns, because `close` and `step` must not run concurrently.
        """
        self.episode_active = False
        environment, self.environment = self.environment, None
        if environment is None:
            return
        if self._running_call is not None and not self._running_call.done():
            self._running_call.add_done_callback(lambda _: self._close_in_background(environment))
        else:
            await self._close_environment(environment)

    def _close_in_background(self, environment: object) -> None:
        task = asyncio.get_running_loop().create_task(self._close_environment(environment))
        _closing_tasks.add(task)
        task.add_done_callback(_closing_tasks.discard)

    async def _close_environment(self, environment: object) -> None:
        try:
            try:
                if self._mcp_session is not None:
                    await self._mcp_session.aclose()
            finally:
                if callable(close := getattr(environment, "close", None)):
                    await self._run(close)
        except BaseException as error:
            # The episode is over, so that an error in `close` has no consequence.
            if not is_author_error(error):
                raise
        finally:
            if self._own_thread is not None:
                self._own_thread.stop()

    async def _run_step(self, action: object) -> Observation:
        if self.env_spec.native and not self.episode_active:
            if self.episode_id is None:
                raise EpisodeNotStarted(
                    "No episode is running. Send a reset before the first step."
                )
            raise EpisodeOver("The episode is over. Send a reset to start another.")
        try:
            value = await self._call_guarded(lambda: self._step(action), "step")
        except ExecutionFailed as error:
            # A step of OpenEnv's environments raises for an illegal action, and the episode goes
            # on. In our own, the author raises `ToolError` for those: other exceptions are faults.
            if not (self.env_spec.native or isinstance(error, StepTimeout)):
                error.details[EPISODE_CONTINUES] = True
                # The message is for a model; the log has the line of the author's code.
                error.author_line = None
            raise
        observation = self._check_observation(value)
        if not vars(observation).get("error"):
            self.steps += 1
        if self.env_spec.has_progress:
            await self._add_progress(observation)
        return observation

    async def _add_progress(self, observation: Observation) -> None:
        """Put what `progress()` returns into the metadata."""
        value = await self._call_guarded(self.environment.progress, "progress")
        if value is None:
            return
        if not isinstance(value, Real) or not 0 <= float(value) <= 1:
            error = ExecutionFailed(
                f"progress() returned {value!r}; it must return a number from 0 to 1, or None."
            )
            error.author_line = f"{locate_function(self.environment.progress)}: {error}"
            error.advice = "Return a number from 0 to 1 from progress(), or do not override it."
            raise error
        observation.metadata["progress"] = float(value)

    async def _call_derived_tool(self, data: Mapping[str, object]) -> Observation:
        """Handle a call of the tool that was derived from a typed environment's action."""
        (tool,) = await self._load_tools()
        name, arguments = data.get("tool_name"), data.get("arguments", {})
        if name != tool.name or not isinstance(arguments, Mapping):
            message = f"No tool is named {name!r}. There is: {tool.name}."
            return fault_result(str(name), "tool_not_found", message)
        try:
            action = self.env_spec.parse_action(arguments)
        except InvalidAction as error:
            return fault_result(tool.name, "invalid_args", str(error))
        return as_tool_result(tool.name, await self._run_step(action))

    def _reset_arguments(self, task: Mapping[str, object]) -> JsonObject:
        """The arguments of reset. `split` and `index` select a task, unless reset takes them."""
        if {"split", "index"} <= task.keys() and "split" not in self.env_spec.task_arguments:
            rest = {key: value for key, value in task.items() if key not in ("split", "index")}
            try:
                selected = self.environment.get_task(task["split"], task["index"])
            except (AttributeError, IndexError, KeyError) as error:
                raise InvalidAction(
                    f"No task {task['index']!r} in split {task['split']!r}: "
                    f"{describe_exception(error)}"
                ) from None
            except BaseException as error:
                raise to_wire_error(error, self.env_spec.cls) from error
            task = {**selected, **rest}
        return self.env_spec.parse_task(task)

    async def _run(self, call: Callable[[], Any]) -> Any:
        if self._runs_on_loop:
            value = call()
        else:
            self._running_call = self._run_in_thread(call)
            value = await asyncio.shield(self._running_call)
        return await value if inspect.isawaitable(value) else value

    async def _build_in_thread(self) -> Any:
        """Build the environment; if that is cancelled, close it once the thread has built it."""

        def close(building: asyncio.Future[Any]) -> None:
            if building.exception() is None:
                self._close_in_background(building.result())
            elif self._own_thread is not None:
                self._own_thread.stop()

        building = self._run_in_thread(self.env_spec.factory)
        try:
            return await asyncio.shield(building)
        except asyncio.CancelledError:
            building.add_done_callback(close)
            raise

    def _run_in_thread(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        if self.env_spec.single_thread:
            if self.env_spec.cls not in _single_thread_workers:
                _single_thread_workers[self.env_spec.cls] = WorkerThread()
            return _single_thread_workers[self.env_spec.cls].submit(call)
        return (self._own_thread or _workers).submit(call)

    async def _call_guarded(self, call: Callable[[], Any], what: str) -> Any:
        """Run a call within the step time-out, and map its exceptions to wire errors."""
        if self.environment is None:
            raise WireError("The session is closed.", ErrorCode.SESSION_ERROR)
        has_limit = self.step_timeout is not None and not self.instant
        deadline = asyncio.timeout(self.step_timeout) if has_limit else None
        try:
            if deadline is None:
                return call() if self.instant else await self._run(call)
            async with deadline:
                return await self._run(call)
        except BaseException as error:
            if not isinstance(error, TimeoutError) or deadline is None or not deadline.expired():
                raise to_wire_error(error, self.env_spec.cls) from error
            self.episode_active = False
            raise StepTimeout(
                f"The {what} took longer than {self.step_timeout:g} s; the session is closed. "
                "Raise `step_timeout` if it needs longer."
            ) from None

    def _check_observation(self, value: object) -> Observation:
        observation = as_observation(value)
        reward = observation.reward
        if reward is not None and not math.isfinite(reward):
            raise ExecutionFailed(
                f"{self.env_spec.id} returned the reward {reward!r}, which is not finite."
            )
        self.episode_active = not observation.done
        return observation
