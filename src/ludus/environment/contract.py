"""What a class promises: its types, its tools, its task arguments, and how it may be run.

Read once per class, for classes of ours and for those written against OpenEnv's own bases alike;
nothing of `openenv` is imported unless the class itself has imported it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ludus.data.tools import JsonObject, ToolSpec, coerce
from ludus.environment.base import Environment
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import explain, tools_of
from ludus.errors import BadEnvironment, InvalidAction
from ludus.protocol.derive import takes_tool_calls, tool_from_action
from ludus.protocol.frames import readable_errors
from ludus.protocol.types import (
    Action,
    CallToolAction,
    CallToolObservation,
    EnvironmentMetadata,
    Observation,
    State,
    TextObservation,
)

CARRIED = ("seed", "episode_id")
"""Task arguments that every reset may be sent, whether its signature names them or not."""


@dataclass(frozen=True)
class Contract:
    """Everything about an environment that does not need a running one."""

    cls: type
    factory: Callable[[], Any]
    name: str
    variant: str | None
    action: type[BaseModel]
    observation: type[BaseModel]
    reset_observation: type[BaseModel]
    state: type[BaseModel]
    blocking: bool
    concurrent: bool
    native: bool
    """Ours: guarded against steps outside an episode. OpenEnv's own: run as it is."""
    named_calls: bool
    """Whether `step` itself takes `call_tool` actions."""
    single_thread: bool = False
    """All instances share one thread (OpenEnv's REQUIRES_SINGLE_THREAD_EXECUTOR)."""
    own_thread: bool = False
    """Each instance keeps to one thread of its own, from construction to close."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Task arguments that hold where a reset does not name them."""

    @property
    def spec(self) -> str:
        return f"{self.name}:{self.variant}" if self.variant else self.name

    @cached_property
    def description(self) -> str:
        lines = (inspect.getdoc(self.cls) or self.cls.__name__).strip().splitlines()
        return lines[0] if lines else self.cls.__name__

    @cached_property
    def metadata(self) -> EnvironmentMetadata:
        distribution = sys.modules.get(self.cls.__module__.partition(".")[0])
        return EnvironmentMetadata(
            name=self.spec,
            description=self.description,
            readme_content=inspect.getdoc(self.cls),
            version=getattr(distribution, "__version__", None) or "1.0.0",
        )

    @cached_property
    def action_schema(self) -> JsonObject:
        return self.action.model_json_schema()

    @cached_property
    def tools(self) -> tuple[ToolSpec, ...] | None:
        """The tools that a model is offered; None where only a running environment can tell."""
        if issubclass(self.cls, ToolEnvironment):
            return tuple(tool.spec for tool in tools_of(self.cls).values())
        if takes_tool_calls(self.action_schema):
            return None
        return (tool_from_action(self.action_schema),)

    @cached_property
    def waits(self) -> bool:
        """Whether any part of it is a coroutine."""
        names = ["reset", "step", "state", *(tool.name for tool in self.tools or ())]
        return any(inspect.iscoroutinefunction(getattr(self.cls, name, None)) for name in names)

    def parse_action(self, data: Mapping[str, Any]) -> Any:
        """The action that the wire carried, or `InvalidAction` with every reason."""
        model = self.action
        if (
            self.named_calls
            and data.get("type") == "call_tool"
            and issubclass(self.cls, ToolEnvironment)
        ):
            model = CallToolAction
        schema = self.action_schema if model is self.action else {}
        try:
            return model.model_validate(coerce(data, schema))
        except ValidationError as error:
            known = [name for name in model.model_fields if name != "metadata"]
            raise InvalidAction(
                f"Invalid action: {explain(error, known)}",
                details={"errors": readable_errors(error)},
            ) from None

    @cached_property
    def _reset_parameters(self) -> Mapping[str, inspect.Parameter]:
        method = self.cls.reset_async if _overrides(self.cls, "reset_async") else self.cls.reset  # type: ignore[attr-defined]
        return dict(list(inspect.signature(method).parameters.items())[1:])

    @cached_property
    def takes_anything(self) -> bool:
        return any(p.kind is p.VAR_KEYWORD for p in self._reset_parameters.values())

    @cached_property
    def task_arguments(self) -> tuple[str, ...]:
        """The names that `reset` declares."""
        return tuple(
            name
            for name, p in self._reset_parameters.items()
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        )

    @cached_property
    def _task_model(self) -> type[BaseModel]:
        hints = get_type_hints(self.cls.reset)  # type: ignore[attr-defined]
        fields: dict[str, Any] = {
            name: (
                hints.get(name, Any),
                ... if parameter.default is parameter.empty else parameter.default,
            )
            for name, parameter in self._reset_parameters.items()
            if name in self.task_arguments
        }
        extra: Any = "allow" if self.takes_anything else "forbid"
        config = ConfigDict(extra=extra, arbitrary_types_allowed=True)
        return create_model("task", __config__=config, **fields)

    def parse_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments for `reset`; an unknown one is an error, not a shrug."""
        given = {**self.defaults, **task}
        for name in CARRIED:
            if name not in self.task_arguments and not self.takes_anything:
                given.pop(name, None)
        if not self.native:
            if self.takes_anything:
                return given
            return {name: given[name] for name in given if name in self.task_arguments}
        try:
            model = self._task_model.model_validate(given)
        except ValidationError as error:
            raise InvalidAction(
                f"Cannot reset {self.spec}: {explain(error, list(self.task_arguments))}",
                details={"errors": readable_errors(error)},
            ) from None
        return {name: getattr(model, name) for name in given}


def contract_of(
    environment: Callable[..., Any],
    *,
    name: str | None = None,
    variant: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Contract:
    """Read the contract off a class, or off what a factory function makes."""
    factory = partial(environment, variant=variant) if variant else environment
    cls = environment if inspect.isclass(environment) else type(_try_out(factory))
    if not callable(getattr(cls, "reset", None)) or not callable(getattr(cls, "step", None)):
        raise BadEnvironment(f"{cls.__name__} is not an environment: it has no reset and step.")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise BadEnvironment(f"{cls.__name__} does not implement {missing}.")
    read = _read_native if issubclass(cls, Environment) else _read_foreign
    return Contract(
        cls=cls,
        factory=factory,
        name=name or f"{cls.__module__}:{cls.__name__}",
        variant=variant,
        defaults=defaults or {},
        **read(cls),
    )


def _try_out(factory: Callable[[], Any]) -> Any:
    environment = factory()
    close = getattr(environment, "close", None)
    if callable(close):
        close()
    return environment


def _read_native(cls: type[Environment[Any, Any, Any]]) -> dict[str, Any]:
    terms: dict[str, Any] = {
        "blocking": cls.blocking,
        "concurrent": cls.concurrent,
        "native": True,
        "state": State,
    }
    if issubclass(cls, ToolEnvironment):
        return terms | _read_tools(cls)
    action, observation, state = _types(cls)
    return terms | {
        "action": action,
        "observation": observation,
        "reset_observation": _shown_by(cls.reset) or observation,
        "state": state,
        "named_calls": False,
    }


def _read_tools(cls: type[ToolEnvironment]) -> dict[str, Any]:
    tools = tools_of(cls)
    if not tools:
        raise BadEnvironment(f"{cls.__name__} declares no @tool: a model could do nothing in it.")
    default = next((tool for tool in tools.values() if tool.default), None)
    shown = [_shown_by(getattr(cls, name)) for name in tools]
    typed = next((one for one in shown if one), None)
    action: type[BaseModel] = CallToolAction
    observation: type[BaseModel] = CallToolObservation
    if default is not None:
        fields = {
            name: (info.annotation, info) for name, info in default.arguments.model_fields.items()
        }
        action = create_model(
            f"{cls.__name__}Action",
            __base__=Action,
            __doc__=default.spec.description,
            **fields,  # type: ignore[call-overload]
        )
        observation = typed or TextObservation
    return {
        "action": action,
        "observation": observation,
        "reset_observation": _shown_by(cls.reset) or TextObservation,
        "named_calls": True,
    }


def _read_foreign(cls: type) -> dict[str, Any]:
    action, observation, state = _types(cls)
    calls = any(base.__name__ == "MCPEnvironment" for base in cls.__mro__)
    if calls:
        theirs = __import__("openenv.core.env_server.mcp_types", fromlist=["CallToolAction"])
        action, observation = theirs.CallToolAction, theirs.CallToolObservation
    return {
        "action": action,
        "observation": observation,
        "reset_observation": _shown_by(cls.reset) or observation,  # type: ignore[attr-defined]
        "state": state,
        "blocking": not _overrides(cls, "step_async"),
        "concurrent": bool(getattr(cls, "SUPPORTS_CONCURRENT_SESSIONS", False)),
        "native": False,
        "named_calls": calls or takes_tool_calls(action.model_json_schema()),
        "single_thread": bool(getattr(cls, "REQUIRES_SINGLE_THREAD_EXECUTOR", False)),
        "own_thread": True,
    }


def _overrides(cls: type, method: str) -> bool:
    """Whether a foreign class has an async method of its own beside the base's default."""
    owner = next((base for base in cls.__mro__ if method in vars(base)), None)
    return owner is not None and owner.__name__ not in ("Environment", "MCPEnvironment")


def _types(cls: type) -> tuple[type[BaseModel], type[BaseModel], type[BaseModel]]:
    """Action, observation and state: from the base class's brackets, else from annotations."""
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            arguments = [arg for arg in get_args(generic) if _is_model(arg)]
            if len(arguments) == 3 and get_origin(generic) is not None:
                return arguments[0], arguments[1], arguments[2]
    hints = _hints(cls.step)  # type: ignore[attr-defined]
    actions = [hint for name, hint in hints.items() if name != "return" and _is_model(hint)]
    observation = hints.get("return")
    getter = getattr(cls, "state", None)
    state = _hints(getter.fget).get("return") if isinstance(getter, property) else None
    return (
        actions[0] if actions else Action,
        observation if _is_model(observation) else Observation,
        state if _is_model(state) else State,
    )


def _shown_by(method: Any) -> type[BaseModel] | None:
    hint = _hints(method).get("return")
    return (
        hint
        if _is_model(hint) and hasattr(hint, "model_fields") and "done" in hint.model_fields
        else None
    )  # type: ignore[union-attr]


def _hints(method: Any) -> dict[str, Any]:
    try:
        return get_type_hints(method)
    except Exception:
        # An annotation that cannot be resolved only costs a less precise schema.
        return {}


def _is_model(hint: Any) -> bool:
    return inspect.isclass(hint) and issubclass(hint, BaseModel)
