"""`ludus serve`: an environment on the OpenEnv wire."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ludus.cli.common_options import expand_user_path
from ludus.errors import ConfigError, MissingExtra


def serve(
    ctx: typer.Context,
    spec: Annotated[
        str,
        typer.Argument(
            help="name, name:variant, file.py:Class or package.module:Class.", metavar="SPEC"
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0 takes a free one.")] = 8000,
    max_sessions: Annotated[
        int | None,
        typer.Option(min=1, help="Sessions at once, over all workers.", show_default="1024"),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the port.")] = 1,
    max_sessions_per_client: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Sessions that one client address may hold.",
            show_default="all, while no other client waits",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="LUDUS_TOKEN",
            help="Bearer token that clients must send. Better set LUDUS_TOKEN or give "
            "--token-file: the process list shows --token.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            parser=expand_user_path, metavar="PATH", help="File that holds the bearer token."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name that the server answers to, beside loopback names: a name, *.domain "
            "or *. May be given several times.",
            show_default="any, unless --host is loopback",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Origin of web pages that may use the server, beside its own: https://HOST or *. "
            "May be given several times.",
            show_default="none",
        ),
    ] = None,
    step_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds a reset or step may take; 0: for ever.")
    ] = 300.0,
    idle_timeout: Annotated[
        float,
        typer.Option(min=0, help="Seconds without a request before a session is closed; 0: never."),
    ] = 3600.0,
    queue_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds a newcomer waits for a free session.")
    ] = 10.0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds a session waits for a client whose line dropped.")
    ] = 120.0,
    send_timeout: Annotated[
        float,
        typer.Option(
            min=0.001, help="Seconds in which a client must take some of its reply, or is cut off."
        ),
    ] = 60.0,
    max_frame_mb: Annotated[float, typer.Option(min=0.001, help="Largest message, in MiB.")] = 16.0,
) -> None:
    """Serve an environment to any OpenEnv or MCP client.

    Example: ludus serve reasoning_gym:chain_sum --port 8000
    """
    try:
        from ludus.serve.config import MIB, ServeConfig
        from ludus.serve.server import serve as run
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Serving") from error
    from ludus.cli.display.console import console
    from ludus.environment.registry import find_environment

    token_typed = _is_on_command_line(ctx, "token")
    if token_typed and token_file is not None:
        raise ConfigError("Give either --token or --token-file, and not both.")
    if max_sessions is None:
        max_sessions = 1024 if find_environment(spec).concurrent else 1
    settings = ServeConfig(
        host=host,
        port=port,
        max_sessions=max_sessions,
        max_sessions_per_client=max_sessions_per_client,
        workers=workers,
        token=_read_token(token_file) if token_file is not None else token,
        allow_hosts=tuple(allow_host or ()),
        allow_origins=tuple(allow_origin or ()),
        step_timeout=step_timeout or None,
        idle_timeout=idle_timeout or None,
        queue_timeout=queue_timeout,
        reconnect_timeout=grace,
        send_timeout=send_timeout,
        max_frame=int(max_frame_mb * MIB),
    )

    def ready(url: str) -> None:
        crew = f"{workers} workers" if workers > 1 else "one process"
        for line in (
            f"[bold]{spec}[/] is served on [bold]{url}[/] (up to {max_sessions} sessions, {crew})",
            f"  WebSocket  {url.replace('http', 'ws', 1)}/ws",
            f"  MCP        {url}/mcp",
            f"  docs       {url}/docs",
            "Ctrl-C stops it; running steps finish first.",
        ):
            console().print(line, soft_wrap=True)
        if token_typed:
            console(stderr=True).print(
                "Other users of this machine can read --token in the process list: "
                "set LUDUS_TOKEN or give --token-file instead.",
                style="yellow",
            )

    run(spec, settings, on_ready=ready)
    console().print("Stopped.")


def _is_on_command_line(ctx: typer.Context, option: str) -> bool:
    """Whether an option stands on the command line, rather than in the environment."""
    source = ctx.get_parameter_source(option)
    # By name: some versions of typer bring a click of their own.
    return source is not None and source.name == "COMMANDLINE"


def _read_token(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--token-file {file} cannot be read: {why}.") from None
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"--token-file {file} must hold one token, on one line.")
    return token
