"""Parsing of typed tool calls."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import pytest

from ludus import ToolEnvironment, tool
from ludus.agents.human import InvalidCall, describe_type, parse_typed_call, usage_line
from ludus.environment.tools import collect_tools


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class House(ToolEnvironment):
    """Tools with every type of argument."""

    def reset(self) -> str:
        return ""

    @tool
    def look(self) -> str:
        """Look around."""
        return ""

    @tool
    def move(self, direction: Literal["north", "south"], steps: int = 1) -> str:
        """Walk.

        Args:
            direction: Which way.
            steps: How far.
        """
        return ""

    @tool
    def say(self, words: str) -> str:
        """Speak.

        Args:
            words: What.
        """
        return ""

    @tool
    def paint(self, colour: Colour, places: list[int], bright: bool | None = None) -> str:
        """Paint.

        Args:
            colour: Which.
            places: Where.
            bright: How.
        """
        return ""


TOOLS = [tool_method.spec for tool_method in collect_tools(House).values()]


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("look", {}),
        ("move north", {"direction": "north"}),
        ("move north 3", {"direction": "north", "steps": 3}),
        ("move steps=2 south", {"direction": "south", "steps": 2}),
        ('move {"direction": "north", "steps": 4}', {"direction": "north", "steps": 4}),
        ("say it's all one text = fine", {"words": "it's all one text = fine"}),
        ('say "quoted words"', {"words": "quoted words"}),
        ("say words=hello", {"words": "hello"}),
        ("paint blue [1,2] yes", {"colour": "blue", "places": [1, 2], "bright": True}),
        ('paint {"colour": "red", "places": []}', {"colour": "red", "places": []}),
    ],
)
def test_a_line_is_parsed_as_a_call(line: str, arguments: dict[str, Any]) -> None:
    assert parse_typed_call(line, TOOLS).arguments == arguments


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("lok", "Did you mean 'look'?"),
        ("qiut", "Did you mean 'quit'?"),
        ("look here", "Too many arguments for look"),
        ("move nroth", "not 'nroth'. Did you mean 'north'?"),
        ("move north two", "not 'two'"),
        ("move north 1 2", "move DIRECTION [STEPS]"),
        ("paint green [1]", "red or blue"),
        ("move", "move DIRECTION [STEPS]"),
        ("paint red 1 maybe", "JSON list, not '1'"),
        ('say {"word": "x"}', "'word'. Did you mean 'words'?"),
        ('say {"words"', "JSON"),
        ('say {"words":' + "[" * 5000, "JSON"),
    ],
)
def test_an_invalid_line_is_explained(line: str, reason: str) -> None:
    with pytest.raises(InvalidCall) as caught:
        parse_typed_call(line, TOOLS)
    assert reason in str(caught.value)


def test_usage_and_types_are_described() -> None:
    assert [usage_line(tool) for tool in TOOLS] == [
        "look",
        "move DIRECTION [STEPS]",
        "say WORDS",
        "paint COLOUR PLACES [BRIGHT]",
    ]
    types = [describe_type(schema) for schema in TOOLS[3].parameters().values()]
    assert types == ["red or blue", "a JSON list", "yes or no"]
