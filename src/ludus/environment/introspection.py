"""Build an `EnvSpec` from a class.

The class may derive from Ludus' or from OpenEnv's base classes; `openenv` is only imported if
the class has imported it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from ludus.data.tool_schema import JsonObject
from ludus.environment.base import Environment
from ludus.environment.faults import log_fault
from ludus.environment.spec import EnvSpec
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import collect_tools
from ludus.errors import BadEnvironment
from ludus.protocol.types import (
    Action,
    CallToolAction,
    CallToolObservation,
    Observation,
    State,
    TextObservation,
)


def build_env_spec(
    environment: Callable[..., object],
    *,
    name: str | None = None,
    variant: str | None = None,
) -> EnvSpec:
    """Build the spec of an environment by introspection of its class, or of a factory's result.

    An app of `create_app`, OpenEnv's or ours, stands for its environment.
    """
    if (sessions := getattr(getattr(environment, "state", None), "sessions", None)) is not None:
        env_spec: EnvSpec = sessions.env_spec
        return replace(env_spec, name=name or env_spec.name)
    for route in getattr(environment, "routes", ()):
        for cell in getattr(getattr(route, "endpoint", None), "__closure__", None) or ():
            server = cell.cell_contents
            if hasattr(server, "_env_factory") and hasattr(server, "action_cls"):
                return replace(
                    build_env_spec(server._env_factory, name=name),
                    action=server.action_cls,
                    observation=server.observation_cls,
                    reset_observation=server.reset_observation_cls or server.observation_cls,
                    state=server.state_cls,
                    note=None,
                )
    factory = partial(environment, variant=variant) if variant else environment
    if inspect.isclass(environment):
        cls: type = environment
    else:
        try:
            built = factory()
        except Exception as error:
            raise BadEnvironment(log_fault(error, getattr(factory, "__module__", ""))) from error
        if callable(close := getattr(built, "close", None)):
            close()
        cls = type(built)
    if not callable(getattr(cls, "reset", None)) or not callable(getattr(cls, "step", None)):
        raise BadEnvironment(
            f"{cls.__name__} is not an environment: it has no reset and step.",
            "Derive it from ludus.ToolEnvironment or ludus.Environment.",
        )
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise BadEnvironment(f"{cls.__name__} does not implement {missing}.", "Define it.")
    fields = _inspect_native(cls) if issubclass(cls, Environment) else _inspect_foreign(cls)
    action, note = fields["action"], None
    if action.model_config.get("extra") == "allow" and is_base(action):
        known = ", ".join(each.__name__ for each in _visible_subclasses(cls, action.__bases__[0]))
        note = (
            f"{cls.__name__}.step does not say which type its actions have"
            f"{f' (there are {known})' if known else ''}, so that any arguments are sent to it. "
            "Name the app that serves it instead, as module:app, or annotate the action."
        )
    return EnvSpec(
        cls=cls,
        factory=factory,
        name=name or f"{cls.__module__}:{cls.__name__}",
        variant=variant,
        note=note,
        **fields,
    )


def _inspect_native(cls: type[Environment[Any, Any, Any]]) -> JsonObject:
    is_async = all(_overrides_async(cls, name) for name in ("reset", "step"))
    fields: JsonObject = {
        "blocking": cls.blocking and not is_async,
        "async_methods": frozenset({"reset", "step"} if is_async else ()),
        "concurrent": cls.concurrent,
        "native": True,
        "state": State,
    }
    if issubclass(cls, ToolEnvironment):
        return fields | _inspect_tools(cls)
    action, observation, state = _model_types(cls)
    action, observation = _named_type(cls, action), _named_type(cls, observation)
    returns_text = _type_hints(cls.reset).get("return") is str
    return fields | {
        "action": action,
        "observation": observation,
        "reset_observation": _observation_type(cls.reset)
        or (TextObservation if returns_text else observation),
        "state": state,
    }


def _inspect_tools(cls: type[ToolEnvironment]) -> JsonObject:
    tools = collect_tools(cls)
    if not tools:
        raise BadEnvironment(
            f"{cls.__name__} has no @tool, so that a model cannot act in it.",
            "Decorate the methods that a model may call with @tool.",
        )
    default = next((tool for tool in tools.values() if tool.default), None)
    types = [_observation_type(getattr(cls, name)) for name in tools]
    declared = next((each for each in types if each), None)
    action: type[BaseModel] = CallToolAction
    observation: type[BaseModel] = CallToolObservation
    if cls.action_type is not None:
        action, observation = cls.action_type, declared or TextObservation
    elif default is not None:
        fields: JsonObject = {
            name: (info.annotation, info) for name, info in default.arguments.model_fields.items()
        }
        action = create_model(
            f"{cls.__name__}Action",
            __base__=Action,
            __doc__=default.spec.description,
            **fields,
        )
        observation = declared or TextObservation
    return {
        "action": action,
        "observation": observation,
        "reset_observation": _observation_type(cls.reset) or TextObservation,
    }


def _inspect_foreign(cls: type[Any]) -> JsonObject:
    action, observation, state = _model_types(cls)
    if any(base.__name__ == "MCPEnvironment" for base in cls.__mro__):
        types = __import__("openenv.core.env_server.mcp_types", fromlist=["CallToolAction"])
        action, observation = types.CallToolAction, types.CallToolObservation
    else:
        action, observation = _named_type(cls, action), _named_type(cls, observation)
    # Also `MCPEnvironment.step_async`, unless a subclass overrides `step` alone.
    owners = {name: _owner(cls, f"{name}_async") for name in ("reset", "step")}
    async_methods = [
        name
        for name, owner in owners.items()
        if owner is not None
        and owner.__name__ != "Environment"
        and issubclass(owner, _owner(cls, name) or owner)
    ]
    return {
        "action": action,
        "observation": observation,
        "reset_observation": _observation_type(cls.reset) or observation,
        "state": state,
        # A step that is not async may block for any time, unless the class declares `blocking`.
        "blocking": bool(getattr(cls, "blocking", not _overrides_async(cls, "step"))),
        "async_methods": frozenset(async_methods),
        "concurrent": bool(getattr(cls, "SUPPORTS_CONCURRENT_SESSIONS", False)),
        "native": False,
        "single_thread": bool(getattr(cls, "REQUIRES_SINGLE_THREAD_EXECUTOR", False)),
    }


def _overrides_async(cls: type, method: str) -> bool:
    """Whether a class implements `METHOD_async` itself, rather than a base class of OpenEnv."""
    owner = _owner(cls, f"{method}_async")
    return owner is not None and owner.__name__ not in ("Environment", "MCPEnvironment")


def _owner(cls: type, method: str) -> type | None:
    return next((base for base in cls.__mro__ if method in vars(base)), None)


def _model_types(cls: type[Any]) -> tuple[type[BaseModel], type[BaseModel], type[BaseModel]]:
    """Action, observation and state: type arguments of the base class, else annotations."""
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            arguments = [arg for arg in get_args(generic) if _is_model(arg)]
            if len(arguments) == 3 and get_origin(generic) is not None:
                return arguments[0], arguments[1], arguments[2]
    hints = _type_hints(cls.step)
    actions = [hint for name, hint in hints.items() if name != "return" and _is_model(hint)]
    observation = hints.get("return")
    getter = getattr(cls, "state", None)
    state = _type_hints(getter.fget).get("return") if isinstance(getter, property) else None
    return (
        actions[0] if actions else _library_type(cls, Action),
        observation if _is_model(observation) else _library_type(cls, Observation),
        state if _is_model(state) else State,
    )


def _library_type(cls: type, base: type[BaseModel]) -> type[BaseModel]:
    """The base class of actions or observations in the library of the class, for missing hints."""
    for owner in reversed(cls.__mro__):
        found = getattr(sys.modules.get(owner.__module__), base.__name__, None)
        if _is_model(found) and is_base(found):
            return found
    return base


def _observation_type(method: object) -> type[BaseModel] | None:
    """The type of observation that a method is annotated to return, if any."""
    hint = _type_hints(method).get("return")
    if not _is_model(hint) or "done" not in hint.model_fields or is_base(hint):
        return None
    return hint


def _named_type(cls: type, model: type[BaseModel]) -> type[BaseModel]:
    """The type itself; for a base class the only subclass in the module, or else any fields."""
    if not is_base(model):
        return model
    any_fields = {"__module__": model.__module__, "model_config": ConfigDict(extra="allow")}
    found = _visible_subclasses(cls, model)
    return found[0] if len(found) == 1 else type(model.__name__, (model,), any_fields)


def _type_hints(method: object) -> dict[str, Any]:
    try:
        return get_type_hints(method)
    except Exception:
        # An annotation that cannot be resolved only makes the schema less precise.
        return {}


def _is_model(hint: object) -> TypeGuard[type[BaseModel]]:
    return inspect.isclass(hint) and issubclass(hint, BaseModel)


_BASE_FIELDS = {"Action": {"metadata"}, "Observation": {"metadata", "reward", "done"}}


def is_base(model: type[BaseModel]) -> bool:
    """Whether it is a base class of actions or observations, without their fields."""
    return set(model.model_fields) == _BASE_FIELDS.get(model.__name__)


def _visible_subclasses(cls: type, base: type[BaseModel]) -> list[type[BaseModel]]:
    """The subclasses in the environment's module, except the library's own."""
    library = base.__module__.partition(".")[0]
    module = sys.modules.get(cls.__module__)
    found = [value for value in vars(module).values() if _is_model(value)] if module else []
    return [
        each
        for each in dict.fromkeys(found)
        if issubclass(each, base) and each.__module__.partition(".")[0] != library
    ]
