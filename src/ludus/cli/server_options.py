"""The bearer token of a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from ludus.errors import ConfigError
from ludus.options import Option, expand_path

TokenFile = Annotated[
    Path | None, Option("Server", metavar="PATH", parse=expand_path), "File with the bearer token."
]


def is_token_visible() -> bool:
    """Whether the process list shows a token."""
    return any(word.partition("=")[0] == "--token" for word in sys.argv)


def warn_of_visible_token() -> None:
    from ludus.cli.display.console import console

    if is_token_visible():
        console(stderr=True).print(
            "Other users of this machine can read --token in the process list: "
            "set LUDUS_TOKEN or give --token-file instead.",
            style="yellow",
        )


def resolve_token(token: str | None, token_file: Path | None) -> str | None:
    """The token of --token, LUDUS_TOKEN or --token-file."""
    if is_token_visible() and token_file is not None:
        raise ConfigError("--token and --token-file exclude each other.")
    return _read_token(token_file) if token_file is not None else token


def _read_token(file: Path) -> str:
    from ludus.data.json_files import read_text

    try:
        token = read_text(file).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--token-file {file} cannot be read: {reason}.") from None
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"--token-file {file} must contain one token on one line.")
    return token
