"""Ludus environments as classes for TRL's `GRPOTrainer(environment_factory=...)`.

TRL resets an instance, offers its public methods to the model as tools, and asks it for a reward.
Its own trainer cannot be told that an episode is over; `finished_episodes` reads `_done`.
"""

from __future__ import annotations

import base64
import io
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.client.endpoint import LocalEndpoint
from ludus.client.event_loop import run_in_background, run_sync
from ludus.data.messages import Content, Image, Text
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.environment.mixture import Mixture, parse_mixture
from ludus.environment.registry import find_environment, is_remote
from ludus.errors import AgentError, ConfigError, LudusError
from ludus.rollout.endpoints import EnvironmentEndpoint, resolve_endpoints
from ludus.train.trl_compat.env_session import EnvSession
from ludus.train.trl_compat.tool_signatures import build_method

ChatContent = str | list[dict[str, Any]]


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
        self._session = EnvSession(self._endpoint, reconnect_timeout=self._reconnect_timeout)
        # TRL never closes an environment: close the session when this object is collected, and at
        # the latest at exit. The finalizer must not refer to `self`.
        session = self._session
        self._finalizer = weakref.finalize(self, lambda: run_in_background(session.close()))

    @property
    def _done(self) -> bool:
        """Whether the episode is over."""
        return self._session.state.is_over

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

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> ChatContent:
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

        parts: list[dict[str, Any]] = []
        for block in content:
            if isinstance(block, Text):
                parts.append({"type": "text", "text": block.text})
            else:
                image = PIL.Image.open(io.BytesIO(base64.b64decode(block.data))).convert("RGB")
                parts.append({"type": "image", "image": image})
        return parts


class RewardedTRLEnvironment(TRLEnvironment):
    """An environment with a reward of its own, which TRL adds to those of reward functions."""

    def get_reward(self) -> float | None:
        """Return the reward of the episode; None after a fault."""
        return self._session.state.reward


def environment_factory(
    environment: str | Mixture,
    *,
    base_url: str | None = None,
    token: str | None = None,
    task: Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
    reconnect_timeout: float = 60.0,
    include_reward: bool = True,
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
        columns: columns of the rows that are arguments of reset, besides `seed`; by default those
            that the environment declares.
        reconnect_timeout: seconds to wait between two episodes for a server that is gone.
        include_reward: whether the class has `get_reward`.
        allow_unseeded: accept rows without a seed, with a warning: the attempts of a group are
            then at different tasks.
    """
    mixture = parse_mixture(environment) if isinstance(environment, str) else environment
    endpoints = run_sync(resolve_endpoints(mixture, base_url=base_url, token=token))
    base = RewardedTRLEnvironment if include_reward else TRLEnvironment
    classes = {}
    for spec, endpoint in endpoints.items():
        session = EnvSession(endpoint)
        try:
            run_sync(session.open())
        finally:
            run_sync(session.close())
        names = _reset_columns(endpoint, spec) if columns is None else columns
        attributes = {
            "__doc__": f"Episodes of {endpoint.name}.",
            "__module__": __name__,
            "_endpoint": endpoint,
            "_task": dict(task or {}),
            "_columns": frozenset(names) | {"seed"},
            "_reconnect_timeout": reconnect_timeout,
            "_allow_unseeded": allow_unseeded,
            "_tools": session.tools,
        }
        methods = {tool.name: build_method(tool, TRLEnvironment._call) for tool in session.tools}
        classes[spec] = type(endpoint.name, (base,), {**methods, **attributes})
    return classes if len(classes) > 1 else next(iter(classes.values()))


def tool_schemas(environment_class: Any) -> list[JsonObject]:
    """Return the tools of a generated class, as `collect` offers them."""
    return [tool.to_openai() for tool in environment_class._tools]


def offer_environment_tools(trainer: Any) -> None:
    """Make a trainer with an `environment_factory` offer its tools as `collect` does.

    TRL would derive them from the methods. Also tells the classes whether the trained model takes
    images.
    """
    for name, environment_class in (trainer.environment_factories or {}).items():
        if isinstance(environment_class, type) and issubclass(environment_class, TRLEnvironment):
            schemas = tool_schemas(environment_class)
            trainer._env_tools[name] = [*trainer._standalone_tools, *schemas]
            environment_class._accepts_images = trainer._is_vlm


def _reset_columns(endpoint: EnvironmentEndpoint, spec: str) -> Sequence[str]:
    """Return the arguments of reset. A server does not tell them, an installed environment does."""
    if isinstance(endpoint.endpoint, LocalEndpoint):
        names = endpoint.endpoint.env_spec.task_arguments
    else:
        try:
            known_as = endpoint.name if is_remote(spec) else spec
            names = find_environment(known_as).task_arguments
        except LudusError:
            names = ()
    return [name for name in names if name not in ("prompt", "environment")]
