"""How tools are declared, and what models get told about their arguments."""

from __future__ import annotations

import inspect
import threading
from typing import Literal

import pytest
from world import Counter, Two

from ludus import ToolEnvironment, tool
from ludus.environment.introspection import build_env_spec
from ludus.environment.tools import InvalidArguments, collect_tools
from ludus.errors import BadEnvironment


class Rich(ToolEnvironment):
    """Every kind of argument."""

    def reset(self) -> str:
        return ""

    @tool
    def draw(
        self,
        colour: Literal["red", "blue"],
        size: int,
        weight: float | None = None,
        tags: list[str] | None = None,
        label: str = "none",
    ) -> str:
        """Draw a shape.

        It is drawn once.

        Args:
            colour: Which colour.
            size: How large, in
                pixels.
            weight: How heavy.
            tags: Words for it.
            label: What to write on it.

        Returns:
            What was drawn.
        """
        return f"{colour} {size} {weight} {tags} {label}"


def test_the_schema_comes_from_hints_and_docstring() -> None:
    spec = collect_tools(Rich)["draw"].spec
    assert spec.description == "Draw a shape.\n\nIt is drawn once."
    properties = spec.input_schema["properties"]
    assert properties["colour"] == {
        "description": "Which colour.",
        "enum": ["red", "blue"],
        "type": "string",
    }
    assert properties["size"] == {"description": "How large, in\npixels.", "type": "integer"}
    assert properties["weight"]["anyOf"] == [{"type": "number"}, {"type": "null"}]
    assert spec.input_schema["required"] == ["colour", "size"]
    assert spec.to_openai()["function"]["parameters"] is spec.input_schema


def test_arguments_are_coerced_where_nothing_is_lost() -> None:
    bound = collect_tools(Rich)["draw"].bind(
        {"colour": "red", "size": "12", "weight": "1.5", "tags": '["a", "b"]', "label": 7}
    )
    assert bound == {"colour": "red", "size": 12, "weight": 1.5, "tags": ["a", "b"], "label": "7"}


def test_optional_arguments_that_were_not_sent_are_left_to_the_method() -> None:
    assert collect_tools(Rich)["draw"].bind({"colour": "red", "size": 1}) == {
        "colour": "red",
        "size": 1,
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"colour": "red"}, "draw: argument 'size' is missing"),
        ({"colour": "green", "size": 1}, "argument 'colour': input should be 'red' or 'blue'"),
        ({"colour": "red", "size": "big"}, "argument 'size': input should be a valid integer"),
        ({"colour": "red", "size": 1.5}, "argument 'size'"),
        ({"color": "red", "size": 1}, "unknown argument 'color'. Did you mean 'colour'?"),
        ({"colour": "red", "size": 1, "zzz": 1}, "Known: colour, size, weight, tags, label."),
        ({"colour": "red", "size": 1, "tags": [1]}, "argument 'tags.0'"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        collect_tools(Rich)["draw"].bind(arguments)
    assert complaint in str(caught.value)


class Mute(ToolEnvironment):
    def reset(self) -> str:
        return ""


class Undocumented(Mute):
    @tool
    def go(self, where: str) -> str:
        return where


class Undescribed(Mute):
    @tool
    def go(self, where: str) -> str:
        """Go."""
        return where


class Untyped(Mute):
    @tool
    def go(self, where) -> str:  # type: ignore[no-untyped-def]
        """Go.

        Args:
            where: There.
        """
        return str(where)


class Unknown(Mute):
    @tool
    def go(self, where: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821
        """Go.

        Args:
            where: There.
        """
        return str(where)


class Unsendable(Mute):
    @tool
    def go(self, where: threading.Event) -> str:
        """Go.

        Args:
            where: There.
        """
        return str(where)


class Greedy(Mute):
    @tool
    def go(self, **where: str) -> str:
        """Go."""
        return str(where)


class Reserved(Mute):
    @tool
    def close(self) -> str:  # type: ignore[override]
        """End it."""
        return ""


@pytest.mark.parametrize(
    ("cls", "problem", "advice"),
    [
        (Mute, "no @tool", "@tool"),
        (Undocumented, "has no docstring", "Write a docstring"),
        (Undescribed, "'where' is not described", "under `Args:`"),
        (Untyped, "'where' has no type hint", "`where: str`"),
        (Unknown, "cannot be resolved: NameError", "Import that type"),
        (Unsendable, "JSON schema", "Use str, int"),
        (Greedy, "takes *where", "Name every argument"),
        (Reserved, "reserved", "Rename the tool"),
    ],
)
def test_an_author_is_told_what_is_missing_and_what_to_do(
    cls: type, problem: str, advice: str
) -> None:
    with pytest.raises(BadEnvironment) as caught:
        build_env_spec(cls)
    assert problem in caught.value.problem and advice in caught.value.advice
    if cls is not Mute:
        line = inspect.getsourcelines(vars(cls)["close" if cls is Reserved else "go"])[1]
        assert f"test_tools.py:{line}:" in caught.value.problem


def test_one_tool_is_the_action_and_several_are_called_by_name() -> None:
    assert set(build_env_spec(Counter).action_schema["properties"]) == {"metadata", "number"}
    assert build_env_spec(Two).action.__name__ == "CallToolAction"


class Inherited(Counter):
    """Adds a tool to those of its base."""

    @tool
    def give_up(self) -> str:
        """End it here."""
        return self.finish(0.0, "As you wish.")


def test_tools_are_inherited() -> None:
    assert list(collect_tools(Inherited)) == ["add", "give_up"]
