"""The pages of MiniWoB++: their files, what is on one, and oracles for some.

An oracle is a pure function of the goal and the page, so it works after any action.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ludus.data.tool_schema import JsonObject, ToolCall

ORIGIN = "http://miniwob.test"
"""Where the browser sees the pages. Nothing listens there: requests are answered from the files."""


@cache
def html_folder() -> Path:
    """Find the folder of MiniWoB++'s HTML files without importing the package."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'miniwob'", name="miniwob")
    return Path(spec.submodule_search_locations[0]) / "html"


@cache
def task_names() -> tuple[str, ...]:
    return tuple(sorted(page.stem for page in (html_folder() / "miniwob").glob("*.html")))


def page_file(url: str) -> Path | None:
    """The file of a page's URL; None if it is no file of MiniWoB++."""
    path = url.partition("#")[0].partition("?")[0]
    if not path.startswith(f"{ORIGIN}/"):
        return None
    folder = html_folder().resolve()
    file = (folder / path.removeprefix(f"{ORIGIN}/")).resolve()
    return file if file.is_relative_to(folder) and file.is_file() else None


_INTERACTIVE = (
    "button checkbox combobox link listbox menuitem option radio searchbox slider spinbutton "
    "switch tab textbox treeitem"
)
INTERACTIVE_ROLES = frozenset(_INTERACTIVE.split())
"""Roles that say by themselves that an element can be operated."""
_HIDDEN_ROLES = frozenset(("InlineTextBox", "LineBreak", "ListMarker", "none"))
_WRAPPER_ROLES = frozenset(("generic", "LabelText", "paragraph"))
"""Roles of elements that only group others, unless they have a name or can be clicked."""
_FIELD_ROLES = frozenset(("searchbox", "spinbutton", "textbox"))
_SHOWN_FLAGS = ("disabled", "focused", "readonly", "required")
_SHOWN_STATES = ("checked", "expanded", "pressed", "selected")


@dataclass(frozen=True, slots=True)
class Element:
    """An element of the page, or a piece of text (role `StaticText`) without a bid."""

    role: str
    name: str = ""
    bid: str | None = None
    depth: int = 0
    value: str | None = None
    text: str | None = None
    """What a text field holds, also if it is a password and `value` shows dots."""
    clickable: bool = False
    css_class: str | None = None
    states: Mapping[str, bool | str] = field(default_factory=dict)

    @property
    def is_checked(self) -> bool:
        return self.states.get("checked") in (True, "true")

    def __str__(self) -> str:
        role = "text" if self.role == "StaticText" else self.role
        parts = [f"{role} {self.name!r}" if self.name else role]
        if self.value is not None:
            parts[0] += f" value={self.value!r}"
        if self.css_class is not None:
            parts.append(f"class={self.css_class!r}")
        if self.clickable and self.role not in INTERACTIVE_ROLES:
            parts.append("clickable")
        parts += [
            name if name in _SHOWN_FLAGS else f"{name}={str(state).lower()}"
            for name, state in self.states.items()
        ]
        bid = "" if self.bid is None else f"[{self.bid}] "
        return "  " * self.depth + bid + ", ".join(parts)


def read_tree(
    nodes: Sequence[JsonObject],
    *,
    clickable: Container[str | None],
    classes: Mapping[str, str],
    texts: Mapping[str, str],
) -> list[Element]:
    """The elements of BrowserGym's accessibility tree that a player can see or use, in order.

    `clickable` has the bids of elements that react to clicks; `classes` the CSS classes by bid,
    shown if a clickable element has no name, because it may be an icon; `texts` the contents of
    text fields by bid.
    """
    by_id = {node["nodeId"]: node for node in nodes}

    def descend(node: JsonObject, depth: int) -> Iterator[Element]:
        element = _read_node(node, depth, clickable, texts)
        child_depth = depth if element is None else depth + 1
        children = [
            part
            for child in node.get("childIds", ())
            if child in by_id and child != node["nodeId"]
            for part in descend(by_id[child], child_depth)
        ]
        if element is None:
            yield from children
            return
        if element.role == "LabelText" and any(
            child.role in INTERACTIVE_ROLES for child in children
        ):
            # The control in a label has the text of the label as its name.
            yield from (
                replace(child, depth=child.depth - 1)
                for child in children
                if child.role != "StaticText"
            )
            return
        if element.text is not None:
            # The contents of a field are its value.
            children = [child for child in children if child.role != "StaticText"]
        if not element.name and len(children) == 1 and children[0].role == "StaticText":
            element = replace(element, name=children.pop().name)
        if element.clickable and not element.name and not children:
            element = replace(element, css_class=classes.get(element.bid or ""))
        yield element
        for child in children:
            is_repeated = child.name in element.name and element.role != "page"
            if child.role != "StaticText" or not is_repeated:
                yield child

    return list(descend(nodes[0], 0)) if nodes else []


def _read_node(
    node: JsonObject, depth: int, clickable: Container[str | None], texts: Mapping[str, str]
) -> Element | None:
    """The element of one node; None if the node is not shown, though its children may be."""
    role = str(node.get("role", {}).get("value", "none"))
    name = " ".join(str(node.get("name", {}).get("value", "")).split())
    bid = node.get("browsergym_id")
    if node.get("ignored") or role in _HIDDEN_ROLES:
        return None
    if role == "StaticText":
        return Element(role, name, depth=depth) if name else None
    if role in _WRAPPER_ROLES and not name and bid not in clickable:
        return None
    properties = {
        each["name"]: each["value"].get("value")
        for each in node.get("properties", ())
        if "value" in each
    }
    states = {key: properties[key] for key in _SHOWN_STATES if key in properties}
    if role != "RootWebArea":
        states |= {key: True for key in _SHOWN_FLAGS if properties.get(key)}
    value = node.get("value", {}).get("value")
    text = texts.get(bid) if bid is not None and role in _FIELD_ROLES else None
    # The browser shows a password as dots.
    if text is not None and not (value and set(value) == {"•"}):
        value = text or None
    return Element(
        role="page" if role == "RootWebArea" else role,
        name=name,
        bid=bid,
        depth=depth,
        value=None if value is None else str(value),
        text=text,
        clickable=bid in clickable,
        states=states,
    )


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


def _select_options(goal: str, elements: Sequence[Element]) -> ToolCall | None:
    """Select the wanted options, and no others."""
    wanted = goal.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
    for option in _with_role(elements, "checkbox", "radio"):
        # A radio button is switched off by choosing another.
        is_wrong = option.is_checked != (option.name in wanted)
        if is_wrong and not (option.role == "radio" and option.is_checked):
            return _click(option)
    return _click_button(elements, "Submit")


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
    "click-button": _press_named_button,
    "click-checkboxes": _select_options,
    "click-checkboxes-large": _select_options,
    "click-checkboxes-transfer": _select_options,
    "click-dialog": _press_only_button,
    "click-dialog-2": _press_named_button,
    "click-option": _select_options,
    "click-test": _press_only_button,
    "click-test-2": lambda goal, elements: _click_button(elements, "ONE"),
    "enter-password": _enter_quoted,
    "enter-text": _enter_quoted,
    "enter-text-dynamic": _enter_quoted,
    "login-user": _log_in,
    "unicode-test": _press_named_button,
}
"""The oracles by page."""
