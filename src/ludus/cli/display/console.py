"""How commands speak: results on stdout, complaints as one red line on stderr."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_CONTROL_CHARS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@cache
def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=stderr)


def print_error(message: str) -> None:
    from rich.text import Text

    console(stderr=True).print(Text(escape_control_chars(message), style="bold red"))


def escape_control_chars(text: str) -> str:
    """What a model or a server said, without what would steer the terminal."""
    return _CONTROL_CHARS.sub(lambda found: f"\\x{ord(found.group()):02x}", text)
