"""The consoles of the command line: results on stdout, errors as one red line on stderr."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_UNPRINTABLE_CHARS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@cache
def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=stderr)


def print_if_read(*lines: str) -> None:
    """Print lines and continue where nobody reads stdout any more; other prints end the program.

    For commands that have more to do than to print, such as a server whose output goes to `head`.
    """
    with suppress(SystemExit):
        for line in lines:
            console().print(line, soft_wrap=True)


def print_error(message: str) -> None:
    from rich.text import Text

    console(stderr=True).print(Text(escape_control_chars(message), style="bold red"))


def escape_control_chars(text: str) -> str:
    """Escape control characters in text of a model or server, which could steer the terminal.

    Also lone surrogates, which cannot be encoded.
    """

    def escape(match: re.Match[str]) -> str:
        code = ord(match.group())
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _UNPRINTABLE_CHARS.sub(escape, text)
