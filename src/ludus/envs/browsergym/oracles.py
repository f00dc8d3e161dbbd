"""Oracles for pages of MiniWoB++: the best next action, by the goal and what the page shows.

They are pure functions of the goal and the page, so that they work whatever was done before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ludus.data.tool_schema import ToolCall
from ludus.envs.browsergym.page import Element

Oracle = Callable[[str, Sequence[Element]], ToolCall | None]

_QUOTED = re.compile(r'"(.*?)"')
_NUMBER = re.compile(r"\d+")


def _click(element: Element) -> ToolCall:
    return ToolCall(name="click", arguments={"bid": element.bid})


def _fill(element: Element, value: str) -> ToolCall:
    return ToolCall(name="fill", arguments={"bid": element.bid, "value": value})


def _find_named(elements: Iterable[Element], name: str, *roles: str) -> Iterator[Element]:
    """The elements with a bid, a name and one of the roles; of any role if none is given."""
    for element in elements:
        if (
            element.bid is not None
            and element.name == name
            and (element.role in roles or not roles)
        ):
            yield element


def _with_role(elements: Iterable[Element], *roles: str) -> list[Element]:
    return [element for element in elements if element.role in roles]


def _text_fields(elements: Iterable[Element]) -> list[Element]:
    return _with_role(elements, "textbox")


def _quoted_strings(goal: str) -> list[str]:
    return _QUOTED.findall(goal)


def _click_button(elements: Iterable[Element], name: str) -> ToolCall | None:
    return next(map(_click, _find_named(elements, name, "button")), None)


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
    (name,) = _quoted_strings(goal)
    # The cross of a dialog is shown as `x` and has the name `Close`.
    return _click_button(elements, "Close" if name == "x" else name)


def _press_button_one(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    return _click_button(elements, "ONE")


def _click_link(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    (name,) = _quoted_strings(goal)
    return next((_click(each) for each in _find_named(elements, name) if each.clickable), None)


def _click_tab(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    name = goal.removeprefix("Click on ").removesuffix(".")
    return next(map(_click, _find_named(elements, name, "link")), None)


def _search_tabs(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    """Click the link if it is in the open tab, else open the tab after it."""
    if (click := _click_link(goal, elements)) is not None:
        return click
    tabs = _with_role(elements, "tab")
    links = [next(_find_named(elements, tab.name, "link")) for tab in tabs]
    is_open = [tab.states.get("selected") is True for tab in tabs]
    next_tab = (is_open.index(True) + 1) % len(tabs) if any(is_open) else 0
    return _click(links[next_tab])


def _focus(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    place = _NUMBER.search(goal)
    fields = _text_fields(elements)
    return _click(fields[int(place.group()) - 1 if place else 0])


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


def _expand(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    section = next(each for each in elements if each.role == "tab" and each.name != "Submit")
    if section.states.get("expanded") is not True:
        return _click(section)
    return _click_button(elements, "Submit")


def _enter_quoted(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    (text,) = _quoted_strings(goal)
    return _fill_then_submit([(field, text) for field in _text_fields(elements)], elements)


def _enter_in_given_case(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    (text,) = _quoted_strings(goal)
    text = text.lower() if "lower case" in goal else text.upper()
    return _fill_then_submit([(_text_fields(elements)[0], text)], elements)


def _log_in(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    return _fill_then_submit(
        zip(_text_fields(elements), _quoted_strings(goal), strict=True), elements, submit="Login"
    )


def _close_popup_and_log_in(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    if (cancel := _click_button(elements, "Cancel")) is not None:
        return cancel
    fields = zip(_text_fields(elements), _quoted_strings(goal), strict=True)
    return _fill_then_submit(fields, elements, submit="OK")


def _use_spinner(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    (number,) = re.findall(r"-?\d+", goal)
    return _fill_then_submit([(_with_role(elements, "spinbutton")[0], number)], elements)


def _texts(elements: Iterable[Element]) -> list[str]:
    return [element.name for element in elements if element.role == "StaticText"]


def _solve_arithmetic(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    left, operator, right = " ".join(_texts(elements)).removesuffix("=").split()
    a, b = int(left), int(right)
    result = {"+": a + b, "-": a - b, "x": a * b}[operator]
    return _fill_then_submit([(_text_fields(elements)[0], str(result))], elements)


def _solve_for_x(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    """Solve `x + 9 = 6`, `9 - x = 6` and the like: both sides are linear in x."""
    equation = next(text for text in _texts(elements) if "x" in text and not text.endswith("="))
    a, operator, b, _, total = equation.split()
    sign = 1 if operator == "+" else -1
    x = int(total) - sign * int(b) if a == "x" else sign * (int(total) - int(a))
    return _fill_then_submit([(_text_fields(elements)[0], str(x))], elements)


def _table(elements: Iterable[Element]) -> dict[str, str]:
    cells = [element.name for element in elements if element.role == "cell"]
    return dict(zip(cells[::2], cells[1::2], strict=True))


def _read_table(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    label = goal.removeprefix("Enter the value of ").partition(" into the text field")[0]
    return _fill_then_submit([(_text_fields(elements)[0], _table(elements)[label])], elements)


def _read_table_twice(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    table = _table(elements)
    labels = [text.removesuffix(":") for text in _texts(elements) if text.endswith(":")]
    values = [table[label] for label in labels]
    return _fill_then_submit(zip(_text_fields(elements), values, strict=True), elements)


def _find_word(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    place = int(_NUMBER.findall(goal)[0])
    word = re.sub(r"[^a-zA-Z]", "", " ".join(_texts(elements)).split()[place - 1])
    return _fill_then_submit([(_text_fields(elements)[0], word)], elements)


def _search_movies(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    match = re.fullmatch(r"Search for (.*) movies directed by (.*) from year (\d+)\.", goal)
    assert match is not None
    values = dict(zip(("Genre", "Director", "Year"), match.groups(), strict=True))
    labels = [each.name for each in elements if each.role == "rowheader"]
    for field, label in zip(_text_fields(elements), labels, strict=True):
        if field.text != values[label]:
            return _fill(field, values[label])
    return next(map(_click, _find_named(elements, "Submit")), None)


ORACLES: Mapping[str, Oracle] = {
    "choose-list": _choose_from_list,
    "click-button": _press_named_button,
    "click-checkboxes": _select_options,
    "click-checkboxes-large": _select_options,
    "click-checkboxes-transfer": _select_options,
    "click-collapsible": _expand,
    "click-dialog": _press_only_button,
    "click-dialog-2": _press_named_button,
    "click-link": _click_link,
    "click-option": _select_options,
    "click-tab": _click_tab,
    "click-tab-2": _search_tabs,
    "click-test": _press_only_button,
    "click-test-2": _press_button_one,
    "enter-password": _enter_quoted,
    "enter-text": _enter_quoted,
    "enter-text-2": _enter_in_given_case,
    "enter-text-dynamic": _enter_quoted,
    "find-word": _find_word,
    "focus-text": _focus,
    "focus-text-2": _focus,
    "login-user": _log_in,
    "login-user-popup": _close_popup_and_log_in,
    "multi-orderings": _search_movies,
    "read-table": _read_table,
    "read-table-2": _read_table_twice,
    "simple-algebra": _solve_for_x,
    "simple-arithmetic": _solve_arithmetic,
    "unicode-test": _press_named_button,
    "use-spinner": _use_spinner,
}
"""The oracles by page."""
