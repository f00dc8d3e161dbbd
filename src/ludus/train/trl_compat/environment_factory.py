"""Ludus environments as the classes that TRL's `GRPOTrainer(environment_factory=...)` takes.

TRL resets an instance, offers its public methods to the model as tools, and asks for its reward.
There is nothing else that it knows of: that an episode is over, the tool's reply has to say. How
the calls of a model are found in what it wrote is TRL's business.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.client.endpoint import LocalEndpoint
from ludus.client.event_loop import run_in_background, run_sync
from ludus.data.content import Content, Image, Text
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.environment.mixture import Mixture, parse_mixture
from ludus.environment.registry import find_environment
from ludus.errors import AgentError, ConfigError, LudusError
from ludus.rollout.endpoints import EnvironmentEndpoint, resolve_endpoints
from ludus.train.trl_compat.env_session import EnvSession
from ludus.train.trl_compat.tool_signatures import build_method

ChatContent = str | list[dict[str, Any]]


class TRLEnvironment:
    """What all classes have in common. Only tools, `reset` and `get_reward` may be public."""

    _place: EnvironmentEndpoint
    _task: JsonObject
    _columns: frozenset[str]
    _patience: float
    _allow_unseeded: bool
    _tools: tuple[ToolSpec, ...]
    _accepts_images = True
    """Whether the model that plays takes pictures."""

    def __init__(self) -> None:
        self._session = EnvSession(self._place, reconnect_timeout=self._patience)
        # A session is given back when its owner is forgotten, and at the latest at the exit.
        self._finalizer = weakref.finalize(self, _close_session, self._session)

    def reset(self, **row: Any) -> ChatContent:
        """Begin the episode that a row of the data asks for; what the model is shown first."""
        given = {name: row[name] for name in self._columns & row.keys() if row[name] is not None}
        task = {**self._place.variant_task, **self._task, **given}
        if "seed" not in task:
            self._check_unseeded_allowed()
        return self._to_chat_content(run_sync(self._session.start_episode(task)))

    def _check_unseeded_allowed(self) -> None:
        if not self._allow_unseeded:
            raise ConfigError(
                "The rows have no seed, so that the attempts of one group would be at different "
                "tasks. Give them a column `seed`, make them with ludus.train.trl_compat.tasks, or allow "
                "it with allow_unseeded=True."
            )
        # Python shows a warning once for each place that it comes from.
        warnings.warn(
            "The rows have no seed: groups compare attempts at different tasks.", stacklevel=3
        )

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> ChatContent:
        try:
            return self._to_chat_content(run_sync(self._session.call(tool, arguments)))
        except AgentError as error:
            # Raised, TRL would take it for a mistake of the model's, and go on.
            return run_sync(self._session.fail_episode(error))

    def _to_chat_content(self, content: Content) -> ChatContent:
        """Words as a string; where there are pictures, the parts that a processor takes."""
        if isinstance(content, str):
            return content
        if not any(isinstance(block, Image) for block in content):
            return "\n".join(block.text for block in content if isinstance(block, Text))
        if not self._accepts_images:
            raise AgentError(
                "The environment shows a picture, and this model reads only text. Train a model "
                "that sees, or have the environment write."
            )
        return [_to_content_part(block) for block in content]


class RewardedTRLEnvironment(TRLEnvironment):
    """With its own reward, which TRL adds to those of reward functions."""

    def get_reward(self) -> float | None:
        """What the episode was worth; None where it cannot be said."""
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
    """The class that TRL's GRPOTrainer takes as `environment_factory`; for a mix, one for each.

        trainer = GRPOTrainer(
            model=..., args=...,
            train_dataset=ludus.train.trl_compat.tasks("wordle", 1000),
            environment_factory=ludus.train.environment_factory("wordle"),
        )

    Args:
        environment: a spec, a URL, or a mix of them, which gives a dictionary by spec.
        base_url: where a single environment is served, if not in this process.
        token: for a server that wants one.
        task: arguments of reset for every episode.
        columns: the rows' columns that are arguments of reset, besides `seed`; if not given, those
            that the environment declares.
        patience: seconds for which a server that is gone is waited for between two episodes.
        rewarded: whether the class has `get_reward`.
        allow_unseeded: take rows without a seed, with a warning: the attempts of a group are then
            at different tasks.
    """
    mix = parse_mixture(environment) if isinstance(environment, str) else environment
    places = run_sync(resolve_endpoints(mix, base_url=base_url, token=token))
    base = RewardedTRLEnvironment if include_reward else TRLEnvironment
    shared = {
        "_task": dict(task or {}), "_patience": reconnect_timeout, "_allow_unseeded": allow_unseeded,
    }  # fmt: skip
    made = {
        spec: _build_environment_class(
            place, base, _reset_columns(place, spec) if columns is None else columns, shared
        )
        for spec, place in places.items()
    }
    return made if len(made) > 1 else next(iter(made.values()))


def tool_schemas(kind: Any) -> list[JsonObject]:
    """The tools of such a class, as `collect` offers them."""
    return [tool.to_openai() for tool in kind._tools]


def use_exact_tool_schemas(trainer: Any) -> None:
    """Have a trainer of TRL's show the tools as `collect` does, and not as read off the methods;
    and no pictures to a model without eyes."""
    for name, kind in (trainer.environment_factories or {}).items():
        if isinstance(kind, type) and issubclass(kind, TRLEnvironment):
            trainer._env_tools[name] = [*trainer._standalone_tools, *tool_schemas(kind)]
            kind._accepts_images = trainer._is_vlm


def _build_environment_class(
    place: EnvironmentEndpoint,
    base: type[TRLEnvironment],
    columns: Sequence[str],
    shared: Mapping[str, Any],
) -> type[TRLEnvironment]:
    tools = run_sync(_fetch_tools(place))
    facts = {
        "__doc__": f"Episodes of {place.name}.",
        "__module__": __name__,
        "_place": place,
        "_columns": frozenset(columns) | {"seed"},
        "_tools": tools,
    }
    methods = {tool.name: build_method(tool, TRLEnvironment._call) for tool in tools}
    return type(place.name, (base,), {**methods, **facts, **shared})


async def _fetch_tools(place: EnvironmentEndpoint) -> tuple[ToolSpec, ...]:
    seat = EnvSession(place)
    try:
        await seat.open()
        return seat.tools
    finally:
        await seat.close()


def _reset_columns(place: EnvironmentEndpoint, spec: str) -> Sequence[str]:
    """The arguments of reset, as far as they are known: a server does not tell them."""
    if isinstance(place.endpoint, LocalEndpoint):
        known = place.endpoint.env_spec.task_arguments
    else:
        try:
            known = find_environment(spec).task_arguments
        except LudusError:
            known = ()
    return [name for name in known if name not in ("prompt", "environment")]


def _close_session(seat: EnvSession) -> None:
    run_in_background(seat.close())


def _to_content_part(block: Text | Image) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    return {"type": "image", "image": _decode_image(block)}


def _decode_image(block: Image) -> Any:
    import base64
    import io

    from PIL import Image as Pictures

    return Pictures.open(io.BytesIO(base64.b64decode(block.data))).convert("RGB")
