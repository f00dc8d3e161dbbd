"""The pages of MiniWoB++: their files, and what is on one, as data and as text for a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ludus.data.tool_schema import JsonObject

ORIGIN = "http://miniwob.test"
"""Where the browser sees the pages. Nothing listens there: requests are answered from the files."""


@cache
def html_folder() -> Path:
    """The folder of the package's HTML files, without importing it."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'miniwob'", name="miniwob")
    return Path(spec.submodule_search_locations[0]) / "html"


@cache
def task_names() -> tuple[str, ...]:
    return tuple(sorted(page.stem for page in (html_folder() / "miniwob").glob("*.html")))


def page_file(url: str) -> Path | None:
    """The file of a URL; None if there is none, or none of the package's."""
    path = url.partition("#")[0].partition("?")[0]
    if not path.startswith(f"{ORIGIN}/"):
        return None
    folder = html_folder().resolve()
    file = (folder / path.removeprefix(f"{ORIGIN}/")).resolve()
    return file if file.is_relative_to(folder) and file.is_file() else None


INTERACTIVE_ROLES = frozenset(
    (
        "button",
        "checkbox",
        "combobox",
        "link",
        "listbox",
        "menuitem",
        "option",
        "radio",
        "searchbox",
        "slider",
        "spinbutton",
        "switch",
        "tab",
        "textbox",
        "treeitem",
    )
)
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


def render_tree(elements: Sequence[Element]) -> str:
    """One element per line, indented below the element that contains it."""
    return "\n".join(map(str, elements))


def read_tree(
    nodes: Sequence[JsonObject],
    *,
    clickable: Container[str | None],
    classes: Mapping[str, str],
    texts: Mapping[str, str],
) -> list[Element]:
    """The elements of BrowserGym's accessibility tree that a player can see or use, in order.

    `clickable` has the bids of elements that react to clicks; `classes` the CSS classes by bid,
    shown where a clickable element has no name, because it may be an icon; `texts` the contents of
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
    if text is not None and not _is_masked(value):
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


def _is_masked(value: object) -> bool:
    """Whether it is how the browser shows a password."""
    return isinstance(value, str) and bool(value) and set(value) == {"•"}
