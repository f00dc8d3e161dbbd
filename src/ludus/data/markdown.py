"""Markdown of cards, with escaping, and the YAML front matter that the Hub reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.data.tool_schema import JsonObject

_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))


def build_front_matter(
    values: Mapping[str, Any], features: Sequence[JsonObject], *, description: str = ""
) -> str:
    """The YAML block that begins a card. Every value is written as JSON, which is valid YAML.

    `datasets` caches a folder by its name and this block: a `description` that differs makes it
    read changed files again.
    """
    lines = [f"{key}: {_yaml_value(value)}" for key, value in values.items() if value]
    if features:
        lines.append("dataset_info:")
        if description:
            lines.append(f"  description: {_yaml_value(description)}")
        lines += ["  features:", *(f"  - {_yaml_value(feature)}" for feature in features)]
    return "\n".join(["---", *lines, "---", ""])


def front_matter_size_category(rows: Any) -> list[str]:
    """The Hub's `size_categories` of so many rows; empty if their number is unknown."""
    if not isinstance(rows, int):
        return []
    return [next((name for limit, name in _SIZES if rows < limit), "n>1M")]


def _yaml_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def to_single_line(value: Any) -> str:
    """Format a value as one line of printable characters, for YAML and table cells."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def inline_code(value: Any) -> str:
    if value is None:
        return ""
    text = to_single_line(value)
    marks = "`" * (_longest_backtick_run(text) + 1)
    return f"{marks} {text} {marks}" if "`" in text else f"{marks}{text}{marks}"


def code_block(text: str, language: str) -> str:
    """A fenced code block, with a fence longer than any run of backticks in the text."""
    fence = "`" * max(3, _longest_backtick_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_backtick_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
