"""Oracles for pages of MiniWoB++: the best next action, by the goal and what the page shows.

They are pure functions of the goal and the page, so that they work whatever was done before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ludus.data.tool_schema import ToolCall
from ludus.envs.browsergym.page import Element

Oracle = Callable[[str, Sequence[Element]], ToolCall | None]

_QUOTED = re.compile(r'"(.*?)"')


def _click(element: Element) -> ToolCall:
    return ToolCall(name="click", arguments={"bid": element.bid})


def _fill(element: Element, value: str) -> ToolCall:
    return ToolCall(name="fill", arguments={"bid": element.bid, "value": value})


def _with_role(elements: Iterable[Element], *roles: str) -> list[Element]:
    return [element for element in elements if element.role in roles]


def _click_button(elements: Iterable[Element], name: str) -> ToolCall | None:
    return next(
        (_click(e) for e in _with_role(elements, "button") if e.bid and e.name == name), None
    )


def _fill_then_submit(
    pairs: Iterable[tuple[Element, str]], elements: Sequence[Element], submit: str = "Submit"
) -> ToolCall | None:
    """Fill the first field that does not hold its value yet; then click the button."""
    for element, value in pairs:
        current = element.value if element.text is None else element.text
        if current != value:
            return _fill(element, value)
    return _click_button(elements, submit)


def _press_only_button(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    return next((_click(each) for each in elements if each.role == "button"), None)


def _press_named_button(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    (name,) = _QUOTED.findall(goal)
    # The cross of a dialog is shown as `x` and has the name `Close`.
    return _click_button(elements, "Close" if name == "x" else name)


def _press_button_one(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    return _click_button(elements, "ONE")


def _click_link(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    (name,) = _QUOTED.findall(goal)
    return next((_click(e) for e in elements if e.bid and e.name == name and e.clickable), None)


def _select_options(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    """Select the wanted options, and no others."""
    wanted = goal.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
    for option in _with_role(elements, "checkbox", "radio"):
        # A radio button is switched off by choosing another.
        is_wrong = option.is_checked != (option.name in wanted)
        if is_wrong and not (option.role == "radio" and option.is_checked):
            return _click(option)
    return _click_button(elements, "Submit")


def _choose_from_list(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    wanted = goal.removeprefix("Select ").removesuffix(" from the list and click Submit.")
    return _fill_then_submit([(_with_role(elements, "combobox")[0], wanted)], elements)


def _enter_quoted(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    (text,) = _QUOTED.findall(goal)
    return _fill_then_submit([(field, text) for field in _with_role(elements, "textbox")], elements)


def _log_in(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    return _fill_then_submit(
        zip(_with_role(elements, "textbox"), _QUOTED.findall(goal), strict=True),
        elements,
        submit="Login",
    )


ORACLES: Mapping[str, Oracle] = {
    "choose-list": _choose_from_list,
    "click-button": _press_named_button,
    "click-checkboxes": _select_options,
    "click-checkboxes-large": _select_options,
    "click-checkboxes-transfer": _select_options,
    "click-dialog": _press_only_button,
    "click-dialog-2": _press_named_button,
    "click-link": _click_link,
    "click-option": _select_options,
    "click-test": _press_only_button,
    "click-test-2": _press_button_one,
    "enter-password": _enter_quoted,
    "enter-text": _enter_quoted,
    "enter-text-dynamic": _enter_quoted,
    "login-user": _log_in,
    "unicode-test": _press_named_button,
}
"""The oracles by page."""
