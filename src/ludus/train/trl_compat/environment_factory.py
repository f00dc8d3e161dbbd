"""Ludus environments as classes for TRL's `GRPOTrainer(environment_factory=...)`, and their tasks.

TRL resets an instance, offers its public methods to the model as tools, and asks it for a reward.
As in `ludus.rollout.episode_loop`, every call gets a reply, an episode that a fault ended
has no reward, and no call runs after the end of the episode.
"""

from __future__ import annotations

import asyncio
import base64
import io
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ludus.client.endpoint import LocalEndpoint
from ludus.client.event_loop import run_in_background, run_sync
from ludus.client.session import Session
from ludus.data.messages import Content, Image, Text
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.environment.mixture import Mixture, parse_mixture
from ludus.environment.registry import find_environment, is_remote
from ludus.errors import (
    AgentError,
    ConfigError,
    ConnectFailed,
    LudusError,
    RequestTimeout,
    SessionError,
    SessionLost,
    StepTimeout,
)
from ludus.protocol.types import StepResult
from ludus.rollout.endpoints import EnvironmentEndpoint, resolve_endpoints
from ludus.rollout.episode_loop import NOT_RUN_MESSAGE, SYSTEM_PROMPT, RewardSum
from ludus.rollout.plan import Plan
from ludus.train.trl_compat.tool_signatures import build_method

if TYPE_CHECKING:
    from datasets import Dataset
    from trl import GRPOTrainer

ChatContent = str | list[JsonObject]
_CONNECTION_ERRORS = (ConnectFailed, SessionLost, RequestTimeout, StepTimeout)
"""Errors after which a new session may work."""
_RECONNECT_INTERVAL_S = 0.5
_CLOSE_TIMEOUT_S = 10.0


class TRLEnvSession:
    """Keeps a session across episodes, and opens a new one when it is lost."""

    def __init__(self, endpoint: EnvironmentEndpoint, *, reconnect_timeout: float = 60.0) -> None:
        self.endpoint, self.reconnect_timeout = endpoint, reconnect_timeout
        self.score = RewardSum()
        self.fault: str | None = None
        """What broke the current episode."""
        self._session: Session | None = None
        self._has_reset = False
        """Whether a reset has succeeded: from then on a failing one is the fault of its task."""

    @property
    def reward(self) -> float | None:
        """The reward of the current episode so far; None after a fault."""
        return self.score.total if self.fault is None else None

    async def open(self) -> Session:
        """The environment's session, opened if necessary."""
        if self._session is None:
            session = self.endpoint.endpoint.session()
            await session.open()
            self._session = session
        return self._session

    async def start_episode(self, task: JsonObject) -> Content:
        """Reset the environment; return the first observation.

        Waits up to `reconnect_timeout` for a server that is gone. Raises if it does not come back,
        and if the very first reset fails, because then no task can be played.
        """
        self.score, self.fault = RewardSum(), None
        deadline = time.monotonic() + self.reconnect_timeout
        while True:
            try:
                session = await self.open()
                observation = self._record(await session.reset(**task))
                self._has_reset = True
                return observation
            except _CONNECTION_ERRORS:
                await self.close()
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_RECONNECT_INTERVAL_S)
            except Exception as error:
                if not self._has_reset:
                    raise
                return await self.fail_episode(error)

    async def call(self, tool: str, arguments: JsonObject) -> Content:
        """Run a tool call of the model and return the reply; never raises."""
        if self.score.done or self.fault is not None or self._session is None:
            return NOT_RUN_MESSAGE
        try:
            return self._record(await self._session.call(tool, arguments))
        except Exception as error:
            return await self.fail_episode(error)

    def _record(self, result: StepResult[JsonObject]) -> Content:
        self.score.add(result)
        return result.content

    async def fail_episode(self, error: Exception) -> str:
        """Mark the episode as broken and drop the session, whose state is unknown."""
        self.fault = str(error) or repr(error)
        await self.close()
        return f"Error: The environment broke, so that this episode is not scored: {self.fault}"

    async def close(self) -> None:
        """Close the environment's session. May be called twice."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(SessionError, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await session.close()


class TRLEnvironment:
    """Base of the generated classes. Only tools, `reset` and `get_reward` may be public."""

    _endpoint: EnvironmentEndpoint
    _task: JsonObject
    _columns: frozenset[str]
    _reconnect_timeout: float
    _allow_unseeded: bool
    _tools: tuple[ToolSpec, ...]
    _accepts_images = True
    """Whether the trained model takes images."""

    def __init__(self) -> None:
        self._session = TRLEnvSession(self._endpoint, reconnect_timeout=self._reconnect_timeout)
        # TRL never closes an environment: close the session when this object is collected, and at
        # the latest at exit. The finalizer must not refer to `self`.
        session = self._session
        self._finalizer = weakref.finalize(self, lambda: run_in_background(session.close()))

    def reset(self, **row: Any) -> ChatContent:
        """Start the episode that a row of the data set asks for; return its first observation."""
        given = {name: row[name] for name in self._columns & row.keys() if row[name] is not None}
        task = {**self._endpoint.variant_task, **self._task, **given}
        if "seed" not in task:
            if not self._allow_unseeded:
                raise ConfigError(
                    "The rows have no seed, so the attempts of a group would be at different "
                    "tasks. Add a `seed` column, build the rows with "
                    "ludus.train.trl_compat.tasks, or set `allow_unseeded`."
                )
            # Python shows a warning once per source line, not once per episode.
            warnings.warn(
                "The rows have no seed: groups compare attempts at different tasks.", stacklevel=2
            )
        return self._to_chat_content(run_sync(self._session.start_episode(task)))

    def _call(self, tool: str, arguments: JsonObject) -> ChatContent:
        try:
            return self._to_chat_content(run_sync(self._session.call(tool, arguments)))
        except AgentError as error:
            # TRL would show a raised error to the model as its own mistake, and continue.
            return run_sync(self._session.fail_episode(error))

    def _to_chat_content(self, content: Content) -> ChatContent:
        """Return text as a string, and content with images as the parts that a processor takes."""
        if isinstance(content, str):
            return content
        if not any(isinstance(block, Image) for block in content):
            return "\n".join(block.text for block in content if isinstance(block, Text))
        if not self._accepts_images:
            raise AgentError(
                "The environment shows an image, and this model reads only text. Train a "
                "vision-language model, or let the environment describe the image."
            )
        import PIL.Image

        parts: list[JsonObject] = []
        for block in content:
            if isinstance(block, Text):
                parts.append({"type": "text", "text": block.text})
            else:
                image = PIL.Image.open(io.BytesIO(base64.b64decode(block.data))).convert("RGB")
                parts.append({"type": "image", "image": image})
        return parts

    @property
    def _done(self) -> bool:
        """Whether the episode is over; read by `ludus.train.trl_compat.GRPOTrainer`."""
        return self._session.score.done or self._session.fault is not None

    def get_reward(self) -> float | None:
        """Return the reward of the episode, which TRL adds to the rewards of reward functions.

        None after a fault.
        """
        return self._session.reward


def environment_factory(
    environment: str | Mixture,
    *,
    base_url: str | None = None,
    token: str | None = None,
    task: Mapping[str, Any] | None = None,
    reconnect_timeout: float = 60.0,
    allow_unseeded: bool = False,
) -> Any:
    """Build the `environment_factory` of TRL's GRPOTrainer: a class, or a dict of them.

        trainer = GRPOTrainer(
            model=..., args=...,
            train_dataset=ludus.train.trl_compat.tasks("wordle", 1000),
            environment_factory=ludus.train.environment_factory("wordle"),
        )

    Args:
        environment: a spec, a URL, or a mixture of them, which gives a dict by spec.
        base_url: where a single environment is served, if not in this process.
        token: bearer token of the server.
        task: arguments of reset for every episode.
        reconnect_timeout: seconds to wait between two episodes for a server that is gone.
        allow_unseeded: accept rows without a seed, with a warning: the attempts of a group are
            then at different tasks.
    """
    mixture = parse_mixture(environment) if isinstance(environment, str) else environment
    endpoints = run_sync(resolve_endpoints(mixture, base_url=base_url, token=token))
    classes = {}
    for spec, endpoint in endpoints.items():
        session = TRLEnvSession(endpoint)
        try:
            tools = tuple(run_sync(session.open()).tools)
        finally:
            run_sync(session.close())
        # The arguments of reset. A server does not tell them, an installed environment does.
        columns: Sequence[str] = ()
        if isinstance(endpoint.endpoint, LocalEndpoint):
            columns = endpoint.endpoint.env_spec.task_arguments
        else:
            with suppress(LudusError):
                name = endpoint.name if is_remote(spec) else spec
                columns = find_environment(name).task_arguments
        attributes = {
            "__doc__": f"Episodes of {endpoint.name}.",
            "__module__": __name__,
            "_endpoint": endpoint,
            "_task": dict(task or {}),
            "_columns": frozenset((*columns, "seed")) - {"prompt", "environment"},
            "_reconnect_timeout": reconnect_timeout,
            "_allow_unseeded": allow_unseeded,
            "_tools": tools,
        }
        methods = {tool.name: build_method(tool, TRLEnvironment._call) for tool in tools}
        classes[spec] = type(endpoint.name, (TRLEnvironment,), {**methods, **attributes})
    return classes if len(classes) > 1 else next(iter(classes.values()))


def tool_schemas(environment_class: type[TRLEnvironment]) -> list[JsonObject]:
    """The tools of a generated class, as `collect` offers them."""
    return [tool.to_openai() for tool in environment_class._tools]


def offer_environment_tools(trainer: GRPOTrainer) -> None:
    """Make a trainer with an `environment_factory` offer its tools as `collect` does.

    TRL would derive them from the methods. Also tells the classes whether the trained model takes
    images.
    """
    for name, environment_class in (trainer.environment_factories or {}).items():
        if isinstance(environment_class, type) and issubclass(environment_class, TRLEnvironment):
            schemas = tool_schemas(environment_class)
            trainer._env_tools[name] = [*trainer._standalone_tools, *schemas]
            environment_class._accepts_images = trainer._is_vlm


def tasks(
    environment: str | Mixture,
    count: int,
    *,
    seed: int = 0,
    system_prompt: str | None = SYSTEM_PROMPT,
) -> Dataset:
    """Build `count` tasks with the columns prompt, seed and environment, one row for each group.

    They are the tasks that `collect` plays under the same seed. The prompt ends with an empty user
    message: TRL appends the first observation to it after it has reset the environment.
    """
    from datasets import Dataset

    if count < 1:
        raise ConfigError(f"`count` must be positive, got {count}.")
    mixture = parse_mixture(environment) if isinstance(environment, str) else environment
    plan = Plan("tasks", mixture, seed=seed)
    prompt = [{"role": "system", "content": system_prompt}] if system_prompt else []
    prompt.append({"role": "user", "content": ""})
    rows = {
        "prompt": [prompt] * count,
        "seed": [plan[number].seed for number in range(count)],
        "environment": [plan.spec_of(number) for number in range(count)],
    }
    return Dataset.from_dict(rows)
