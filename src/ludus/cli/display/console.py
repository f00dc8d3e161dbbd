"""Text on the terminal: results on stdout, errors as one red line on stderr, tables."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_UNPRINTABLE_CHARS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@cache
def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=stderr)


def print_text(text: str, style: str = "", *, stderr: bool = False) -> None:
    """Print text as it is, without markup and control characters; lines are not folded."""
    from rich.text import Text

    console(stderr=stderr).print(Text(escape_control_chars(text), style=style), soft_wrap=True)


def print_error(message: str) -> None:
    print_text(message, "bold red", stderr=True)


def print_if_read(*lines: str) -> None:
    """Print lines and continue if nobody reads stdout any more; other prints end the program.

    For commands that have more to do than to print, such as a server whose output goes to `head`.
    """
    with suppress(SystemExit):
        for line in lines:
            console().print(line, soft_wrap=True)


def print_facts(facts: Iterable[tuple[str, str | Text]]) -> None:
    """Print names and values in two columns; those without a value are left out."""
    print_table(("", ""), [fact for fact in facts if fact[1]])


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Collection[str] = (),
) -> None:
    """Print a table; the columns `right` are aligned there, and the last one may be folded."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(header))
    for name in header:
        is_last = name == header[-1]
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=not is_last,
            overflow="fold",
        )
    for row in rows:
        cells = (
            Text(escape_control_chars(cell)) if isinstance(cell, str) else cell for cell in row
        )
        table.add_row(*cells)
    # A pipe has no width: each row is one line.
    has_width = console().is_terminal or "COLUMNS" in os.environ
    (console() if has_width else Console(width=10_000, highlight=False)).print(table)


def escape_control_chars(text: str) -> str:
    """Escape control characters in text of a model or server, which could steer the terminal.

    Also lone surrogates, which cannot be encoded.
    """

    def escape(match: re.Match[str]) -> str:
        code = ord(match.group())
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _UNPRINTABLE_CHARS.sub(escape, text)
