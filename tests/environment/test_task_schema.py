"""The schema of the task arguments."""

from __future__ import annotations

import threading
from typing import Any, Literal

import pytest

from ludus import ToolEnvironment, tool
from ludus.environment.introspection import build_env_spec
from ludus.environment.registry import find_environment
from ludus.environment.spec import task_schema

DEFAULT = threading.Event()


class Drawn(ToolEnvironment):
    """Guess what was drawn.

    Reward:
        mode: this is not an argument.
    Task arguments:
        mode: how to draw, which may
            take two lines.
        unknown: is not an argument of the reset.
    Episode end:
        count: neither is this.
    """

    def reset(
        self,
        *,
        mode: Literal["ink", "oil"],
        count: int = 3,
        event: Any = DEFAULT,
        seed: int | None = None,
        episode_id: str | None = None,
    ) -> str:
        return ""

    @tool
    def guess(self) -> str:
        """Guess."""
        return ""


def test_arguments_have_types_defaults_and_the_descriptions_of_the_docstring() -> None:
    schema = task_schema(build_env_spec(Drawn))
    assert schema["required"] == ["mode"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["mode"] == {
        "enum": ["ink", "oil"],
        "type": "string",
        "description": "how to draw, which may take two lines.",
    }
    assert schema["properties"]["count"] == {"type": "integer", "default": 3}
    assert schema["properties"]["event"] == {}
    assert set(schema["properties"]) == {"mode", "count", "event", "seed"}


class Foreign:
    """A class of OpenEnv's kind, with a type that has no schema."""

    def reset(self, lock: threading.Event, size: int = 2, **options: Any) -> Any: ...

    def step(self, action: Any) -> Any: ...


def test_types_without_a_schema_accept_anything() -> None:
    schema = task_schema(build_env_spec(Foreign))
    assert schema["properties"]["lock"] == {}
    assert "size" in schema["properties"]
    assert schema["additionalProperties"] is True


@pytest.mark.parametrize("spec", ["wordle", "sudoku", "catch", "guess_number"])
def test_every_argument_of_a_shipped_environment_is_described(spec: str) -> None:
    properties = task_schema(find_environment(spec))["properties"]
    assert "seed" in properties
    assert all(field["description"] for field in properties.values())
