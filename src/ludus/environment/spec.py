"""`EnvSpec`: the types, tools and task arguments of an environment, and how it may be run.

`ludus.environment.introspection` builds it from a class.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from ludus.data.tool_schema import JsonObject, ToolSpec, coerce_arguments, strip_titles
from ludus.environment.base import Environment
from ludus.environment.faults import explain_validation_error, locate_function
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import collect_tools
from ludus.errors import BadEnvironment, InvalidAction, describe_in_one_line
from ludus.protocol.frames import error_frame_details
from ludus.protocol.types import (
    CallToolAction,
    EnvironmentMetadata,
    takes_tool_calls,
    tool_from_action,
)

IMPLICIT_TASK_ARGUMENTS = ("seed", "episode_id")
"""Task arguments that may be sent to every reset, even if its signature does not have them."""


@dataclass(frozen=True)
class EnvSpec:
    """Everything that is known about an environment without an instance of it."""

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
    """Whether it derives from Ludus' base classes: then steps outside of an episode are refused,
    and task arguments are validated. An environment of OpenEnv runs as it is."""
    note: str | None = None
    """What a user should know before the first episode, if anything."""
    async_methods: frozenset[str] = frozenset()
    """Which of `reset` and `step` run as `reset_async` and `step_async`."""
    single_thread: bool = False
    """Whether all instances share one thread (OpenEnv's REQUIRES_SINGLE_THREAD_EXECUTOR)."""

    @property
    def id(self) -> str:
        return f"{self.name}:{self.variant}" if self.variant else self.name

    def method_name(self, name: str) -> str:
        """The name under which `reset` or `step` is called."""
        return f"{name}_async" if name in self.async_methods else name

    @property
    def max_sessions(self) -> int | None:
        """How many sessions should run at once; None for any number."""
        return getattr(self.cls, "max_sessions", None)

    @cached_property
    def named_calls(self) -> bool:
        """Whether `step` takes `call_tool` actions."""
        return self._has_tools or takes_tool_calls(self.action_schema)

    @cached_property
    def description(self) -> str:
        lines = (inspect.getdoc(self.cls) or self.cls.__name__).strip().splitlines()
        return lines[0] if lines else self.cls.__name__

    @cached_property
    def metadata(self) -> EnvironmentMetadata:
        distribution = sys.modules.get(self.cls.__module__.partition(".")[0])
        return EnvironmentMetadata(
            name=self.id,
            description=self.description,
            readme_content=inspect.getdoc(self.cls),
            version=getattr(distribution, "__version__", None) or "1.0.0",
        )

    @cached_property
    def action_schema(self) -> JsonObject:
        return self.action.model_json_schema()

    @cached_property
    def tools(self) -> tuple[ToolSpec, ...] | None:
        """The tools that a model is offered; None if they depend on the instance."""
        if self._has_tools:
            return tuple(tool.spec for tool in collect_tools(self.cls).values())
        if takes_tool_calls(self.action_schema):
            return None
        return (tool_from_action(self.action_schema),)

    @cached_property
    def is_async(self) -> bool:
        """Whether any of its methods is a coroutine function."""
        names = ["reset", "step", "state", "progress", "task_key", "list_tools"]
        names += [tool.name for tool in self.tools or ()]
        members = [getattr(self.cls, name, None) for name in names]
        return bool(self.async_methods) or any(
            inspect.iscoroutinefunction(each.fget if isinstance(each, property) else each)
            for each in members
        )

    @cached_property
    def has_progress(self) -> bool:
        """Whether the class overrides `progress`."""
        return self.native and getattr(self.cls, "progress", None) is not Environment.progress

    @cached_property
    def has_task_key(self) -> bool:
        """Whether the class overrides `task_key`."""
        return self.native and getattr(self.cls, "task_key", None) is not Environment.task_key

    def parse_action(self, data: Mapping[str, object]) -> Any:
        """Validate an action; raises `InvalidAction` with all errors."""
        model = self.action
        if data.get("type") == "call_tool" and self._has_tools:
            model = CallToolAction
        try:
            return model.__pydantic_validator__.validate_python(data)
        except ValidationError:
            # Coercion only on failure: most actions are valid, and a step should be fast.
            schema = self.action_schema if model is self.action else {}
        try:
            return model.model_validate(coerce_arguments(data, schema))
        except ValidationError as error:
            known = [name for name in model.model_fields if name != "metadata"]
            raise InvalidAction(
                f"Invalid action: {explain_validation_error(error, known)}",
                details={"errors": error_frame_details(error)},
            ) from None

    @cached_property
    def _has_tools(self) -> bool:
        return issubclass(self.cls, ToolEnvironment)

    @cached_property
    def _reset_parameters(self) -> Mapping[str, inspect.Parameter]:
        method = getattr(self.cls, "reset" if self.native else self.method_name("reset"))
        return dict(list(inspect.signature(method).parameters.items())[1:])

    @cached_property
    def accepts_any_task(self) -> bool:
        return any(p.kind is p.VAR_KEYWORD for p in self._reset_parameters.values())

    @cached_property
    def task_arguments(self) -> tuple[str, ...]:
        """The names of the parameters of `reset`."""
        return tuple(
            name
            for name, p in self._reset_parameters.items()
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        )

    @cached_property
    def task_model(self) -> type[BaseModel]:
        """The type of the task arguments; raises `BadEnvironment` if a hint is not resolved."""
        cls: type[Any] = self.cls
        method = cls.reset
        try:
            hints = get_type_hints(method)
        except Exception as error:
            raise BadEnvironment(
                f"{locate_function(method)}: reset has a type hint that cannot be resolved: "
                f"{describe_in_one_line(error)}.",
                "Import that type at the top of the module, outside of `if TYPE_CHECKING`.",
            ) from None
        fields: JsonObject = {
            name: (
                hints.get(name, Any),
                ... if parameter.default is parameter.empty else parameter.default,
            )
            for name, parameter in self._reset_parameters.items()
            if name in self.task_arguments
        }
        extra: Any = "allow" if self.accepts_any_task else "forbid"
        config = ConfigDict(extra=extra, arbitrary_types_allowed=True)
        return create_model("task", __config__=config, **fields)

    def parse_task(self, task: Mapping[str, object]) -> JsonObject:
        """Validate the keyword arguments of `reset`; raises `InvalidAction`.

        For an environment of OpenEnv, unknown arguments are dropped instead.
        """
        arguments = dict(task)
        for name in IMPLICIT_TASK_ARGUMENTS:
            if name not in self.task_arguments and not self.accepts_any_task:
                arguments.pop(name, None)
        if not self.native:
            if self.accepts_any_task:
                return arguments
            return {name: arguments[name] for name in arguments if name in self.task_arguments}
        try:
            model = self.task_model.model_validate(arguments)
        except ValidationError as error:
            reason = explain_validation_error(error, list(self.task_arguments))
            raise InvalidAction(
                f"Cannot reset {self.id}: {reason}", details={"errors": error_frame_details(error)}
            ) from None
        return {name: getattr(model, name) for name in arguments}


_SECTION = re.compile(r"^Task arguments:\n((?:[ \t]+.*\n?|\n)*)", re.MULTILINE)
_ARGUMENTS = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


class _QuietGenerator(GenerateJsonSchema):
    """Leaves out defaults that JSON does not have, without a warning."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012 - as in the base class
        "non-serializable-default",
        "skipped-choice",
    }


def task_schema(env_spec: EnvSpec) -> JsonObject:
    """The schema of the task arguments, with their descriptions from the class's docstring.

    Arguments whose types have no schema, as in some of OpenEnv's environments, accept anything.
    """
    schema: JsonObject
    try:
        model = env_spec.task_model
        schema = strip_titles(model.model_json_schema(schema_generator=_QuietGenerator))
    except (BadEnvironment, PydanticUserError):
        properties: JsonObject = {name: {} for name in env_spec.task_arguments}
        schema = {"type": "object", "properties": properties}
    properties = schema.setdefault("properties", {})
    properties.pop("episode_id", None)
    section = _SECTION.search(inspect.getdoc(env_spec.cls) or "")
    for names, text in _ARGUMENTS.findall(section.group(1) if section else ""):
        for name in names.split(", "):
            if name in properties:
                properties[name] = {**properties[name], "description": " ".join(text.split())}
    schema["additionalProperties"] = env_spec.accepts_any_task
    return schema
