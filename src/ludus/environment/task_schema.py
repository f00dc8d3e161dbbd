"""The JSON schema of the task arguments of an environment: the parameters of its `reset`."""

from __future__ import annotations

import inspect
import re

from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from ludus.data.tool_schema import JsonObject, strip_titles
from ludus.environment.spec import EnvSpec
from ludus.errors import BadEnvironment

_SECTION = re.compile(r"^Task arguments:\n((?:[ \t]+.*\n?|\n)*)", re.MULTILINE)
_ARGUMENTS = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


class _QuietGenerator(GenerateJsonSchema):
    """Leaves out defaults that JSON does not have, without a warning."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012 - as in the base class
        "non-serializable-default",
        "skipped-choice",
    }


def task_schema(env_spec: EnvSpec) -> JsonObject:
    """The schema of the task arguments, with the descriptions of the class's docstring.

    Arguments whose types have no schema, as some of OpenEnv's environments have them, accept
    anything.
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
    for name, description in _argument_descriptions(env_spec.cls).items():
        if name in properties:
            properties[name] = {**properties[name], "description": description}
    schema["additionalProperties"] = env_spec.accepts_any_task
    return schema


def _argument_descriptions(cls: type) -> dict[str, str]:
    """The `Task arguments` section of a docstring, by argument."""
    section = _SECTION.search(inspect.getdoc(cls) or "")
    return {
        name: " ".join(text.split())
        for names, text in _ARGUMENTS.findall(section.group(1) if section else "")
        for name in names.split(", ")
    }
