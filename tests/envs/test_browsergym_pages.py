"""The parts of the browsergym environment that need no browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ludus.data.tool_schema import ToolCall
from ludus.environment.introspection import build_env_spec
from ludus.envs import browsergym as package
from ludus.envs.browsergym import BrowserGym, BrowserGymAction, BrowserGymObservation
from ludus.envs.browsergym.environment import parse_browser_action
from ludus.envs.browsergym.page import ORACLES, Element, page_file, read_tree, task_names
from ludus.errors import MissingExtra, ToolError

TOOLS: dict[str, Callable[..., Any]] = {
    "click": lambda bid: None,
    "fill": lambda bid, value: None,
}


@pytest.mark.parametrize("value", ["O'Connor", 'say "hi"', "a\\b", "one\ntwo", "'''\"\"\"", ""])
def test_an_action_in_text_keeps_its_arguments(value: str) -> None:
    expected = ToolCall(name="fill", arguments={"bid": "14", "value": value})
    assert parse_browser_action(f" fill('14', {value!r})\n", TOOLS) == expected
    assert parse_browser_action(f"fill('14', value={value!r})", TOOLS) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "click",
        "click(",
        "click('13'); click('14')",
        "tap('13')",
        "click()",
        "click('13', '14')",
        "click(open('/etc/passwd'))",
        "__import__('os').system('true')",
        "(lambda: 1)()",
        "click(*['13'])",
        "fill('14', 'O'Connor')",
        "(" * 10_000,
        "click('" + "1" * 200_000 + "')",
    ],
)
def test_anything_but_a_call_with_literals_is_refused(text: str) -> None:
    with pytest.raises(ToolError):
        parse_browser_action(text, TOOLS)


def test_a_tree_shows_what_can_be_seen_or_used() -> None:
    def node(number: int, role: str, name: str = "", *children: int, **more: object) -> object:
        ids = [str(child) for child in children]
        return {
            "nodeId": str(number),
            "role": {"value": role},
            "name": {"value": name},
            "childIds": ids,
            "browsergym_id": str(number),
            **more,
        }

    checked = [{"name": "checked", "value": {"value": "true"}}]
    nodes = [
        node(0, "RootWebArea", "Form", 1),
        node(1, "generic", "", 2, 5, 7, 9, 10),
        node(2, "LabelText", "", 3, 4),
        node(3, "checkbox", "Agree", properties=checked),
        node(4, "StaticText", "Agree"),
        node(5, "generic", "", 6),
        node(6, "StaticText", "more"),
        node(7, "button", "Send  it", 8),
        node(8, "StaticText", "Send it"),
        node(9, "generic"),
        node(10, "textbox", "", 11, value={"value": "•••"}),
        node(11, "StaticText", "•••"),
    ]
    elements = read_tree(
        nodes,  # type: ignore[arg-type]
        clickable={"2", "5", "9"},
        classes={"5": "text", "9": "star"},
        texts={"10": "abc"},
    )
    assert list(map(str, elements)) == [
        "[0] page 'Form'",
        "  [3] checkbox 'Agree', checked=true",
        "  [5] generic 'more', clickable",
        "  [7] button 'Send it'",
        "  [9] generic, class='star', clickable",
        "  [10] textbox value='•••'",
    ]
    assert elements[-1].text == "abc"


def test_an_oracle_repairs_what_was_done_wrong() -> None:
    goal = "Select a, b and click Submit."
    boxes = [
        Element("checkbox", name, bid, states={"checked": state})
        for name, bid, state in [("a", "1", "true"), ("b", "2", "false"), ("c", "3", "true")]
    ]
    submit = Element("button", "Submit", "9")
    oracle = ORACLES["click-checkboxes"]
    assert oracle(goal, [*boxes, submit]) == ToolCall(name="click", arguments={"bid": "2"})
    boxes[1] = Element("checkbox", "b", "2", states={"checked": "true"})
    assert oracle(goal, [*boxes, submit]) == ToolCall(name="click", arguments={"bid": "3"})
    assert oracle(goal, [*boxes[:2], submit]) == ToolCall(name="click", arguments={"bid": "9"})


def test_an_oracle_sees_a_wrong_password() -> None:
    page = [
        Element("textbox", bid="1", value="•••", text="abd"),
        Element("textbox", bid="2", value="•••", text="abc"),
        Element("button", "Submit", "3"),
    ]
    action = ORACLES["enter-password"]('Enter the password "abc" into both text fields …', page)
    assert action == ToolCall(name="fill", arguments={"bid": "1", "value": "abc"})


def test_every_page_is_a_variant() -> None:
    assert len(ORACLES) >= 10 and set(ORACLES) <= set(task_names()) == set(BrowserGym.variants())
    assert BrowserGym.variant_task("click-test") == {"task_name": "click-test"}


def test_the_models_are_those_of_the_wire() -> None:
    spec = build_env_spec(BrowserGym, name="browsergym")
    assert spec.action is BrowserGymAction
    assert spec.observation is spec.reset_observation is BrowserGymObservation
    assert [tool.name for tool in spec.tools or ()] == [
        "click",
        "fill",
        "press",
        "scroll",
        "noop",
    ]


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "https://example.org/",
        "http://miniwob.test/../../../../etc/passwd",
        "http://miniwob.test/miniwob/nothing.html",
        "http://miniwob.test.example.org/miniwob/click-test.html",
    ],
)
def test_only_the_files_of_the_pages_are_served(url: str) -> None:
    assert page_file(url) is None
    assert page_file("http://miniwob.test/miniwob/click-test.html?x#y") is not None


def test_a_missing_extra_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"ludus-rl\[browsergym\]") as raised:
        package.BrowserGym  # noqa: B018
    assert "\n" not in str(raised.value)
    # A client of a server elsewhere needs no browser.
    assert package.BrowserGymEnv is not None
