"""Options of the commands that serve: the address, and who may use the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ludus.cli.common_options import expand_user_path
from ludus.errors import ConfigError

Host = Annotated[str, typer.Option(help="Address to bind.")]
Port = Annotated[int, typer.Option(help="Port to bind; 0 for any free port.")]
ServerToken = Annotated[
    str | None,
    typer.Option(
        envvar="LUDUS_TOKEN",
        help="Bearer token that clients must send. Prefer LUDUS_TOKEN or --token-file: other "
        "users of this machine can read --token in the process list.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(parser=expand_user_path, metavar="PATH", help="File with the bearer token."),
]
AllowNoToken = Annotated[
    bool,
    typer.Option(
        "--allow-no-token",
        help="Start without a token on an address that others can reach, as in a container.",
    ),
]
AllowHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        envvar="LUDUS_ALLOW_HOSTS",
        metavar="NAME",
        help="Accepted Host header besides loopback names: a name, *.domain or *; repeatable.",
        show_default="any, unless --host is loopback",
    ),
]
AllowOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-origin",
        envvar="LUDUS_ALLOW_ORIGINS",
        metavar="ORIGIN",
        help="Accepted Origin header besides the server's own: https://HOST or *; repeatable.",
        show_default="none",
    ),
]


@dataclass(frozen=True, slots=True)
class ResolvedToken:
    """The bearer token of a server, and whether the process list shows it."""

    value: str | None
    is_visible: bool

    def warn_if_visible(self) -> None:
        from ludus.cli.display.console import console

        if self.is_visible:
            console(stderr=True).print(
                "Other users of this machine can read --token in the process list: "
                "set LUDUS_TOKEN or give --token-file instead.",
                style="yellow",
            )


def resolve_token(ctx: typer.Context, token: str | None, token_file: Path | None) -> ResolvedToken:
    """The token of --token, LUDUS_TOKEN or --token-file."""
    # Compared by name, because some versions of typer bundle a click of their own.
    source = ctx.get_parameter_source("token")
    is_visible = source is not None and source.name == "COMMANDLINE"
    if is_visible and token_file is not None:
        raise ConfigError("--token and --token-file exclude each other.")
    return ResolvedToken(_read_token(token_file) if token_file is not None else token, is_visible)


def _read_token(file: Path) -> str:
    try:
        token = file.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--token-file {file} cannot be read: {reason}.") from None
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"--token-file {file} must contain one token on one line.")
    return token
