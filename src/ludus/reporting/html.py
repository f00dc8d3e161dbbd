"""Build HTML in which every text is escaped, unless it was built here."""

from __future__ import annotations

from html import escape
from typing import Any

_VOID_TAGS = frozenset(("img", "meta", "br"))


class Html(str):
    """Markup that needs no escaping."""

    __slots__ = ()


def element(tag: str, *children: str | None, **attributes: Any) -> Html:
    """Return an element. Plain strings among the children are escaped; None is left out.

    A trailing underscore of an attribute's name is removed (`class_`), others become dashes.
    Attributes that are None or False are left out.
    """
    attribute_text = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_attribute(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID_TAGS:
        return Html(f"<{tag}{attribute_text}/>")
    return Html(f"<{tag}{attribute_text}>{join(*children)}</{tag}>")


def join(*children: str | None) -> Html:
    """Return the children one after the other, escaped if they are plain strings."""
    return Html(
        "".join(
            child if isinstance(child, Html) else escape(child)
            for child in children
            if child is not None
        )
    )


def _attribute(value: Any) -> str:
    if value is True:
        return ""
    return f"{value:.1f}" if isinstance(value, float) else str(value)
