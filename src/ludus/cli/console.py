"""How commands speak: results on stdout, complaints as one red line on stderr."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=stderr)


def complain(message: str) -> None:
    from rich.text import Text

    console(stderr=True).print(Text(message, style="bold red"))
