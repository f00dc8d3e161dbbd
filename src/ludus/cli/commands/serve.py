"""`ludus serve`: serve an environment to OpenEnv and MCP clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ludus.cli import common_options as common
from ludus.cli.common_options import expand_user_path
from ludus.errors import ConfigError, MissingExtra


def serve(
    ctx: typer.Context,
    spec: common.ServedSpec,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0 for any free port.")] = 8000,
    max_sessions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of concurrent sessions, over all workers.",
            show_default="1024; fewer if the environment says so",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of server processes.")] = 1,
    max_sessions_per_client: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of sessions per client address.",
            show_default="no limit while no other client waits",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="LUDUS_TOKEN",
            help="Bearer token that clients must send. Prefer LUDUS_TOKEN or --token-file: other "
            "users of this machine can read --token in the process list.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(parser=expand_user_path, metavar="PATH", help="File with the bearer token."),
    ] = None,
    allow_no_token: Annotated[
        bool,
        typer.Option(
            "--allow-no-token",
            help="Start without a token on an address that others can reach, as in a container.",
        ),
    ] = False,
    allow_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="Accepted Host header besides loopback names: a name, *.domain or *; repeatable.",
            show_default="any, unless --host is loopback",
        ),
    ] = None,
    allow_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="Accepted Origin header besides the server's own: https://HOST or *; repeatable.",
            show_default="none",
        ),
    ] = None,
    step_timeout: Annotated[
        float, typer.Option(min=0, help="Timeout of a reset or step, in seconds; 0: none.")
    ] = 300.0,
    idle_timeout: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds without a request after which a session is closed; 0: never."
        ),
    ] = 3600.0,
    queue_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that a client waits for a free session.")
    ] = 10.0,
    reconnect_timeout: Annotated[
        float,
        typer.Option(min=0, help="Seconds that a session is kept for a client that disconnected."),
    ] = 120.0,
    send_timeout: Annotated[
        float,
        typer.Option(
            min=0.001, help="Seconds after which a client that reads nothing is disconnected."
        ),
    ] = 60.0,
    max_frame_mb: Annotated[
        float, typer.Option(min=0.001, help="Maximum size of a message, in MiB.")
    ] = 16.0,
) -> None:
    """Serve an environment to any OpenEnv or MCP client.

    Example: ludus serve reasoning_gym:chain_sum --port 8000
    """
    try:
        from ludus.serve.config import MIB, ServeConfig
        from ludus.serve.server import serve as run
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Serving") from error
    from ludus.cli.display.console import console, print_if_read
    from ludus.environment.registry import find_environment

    # Compared by name, because some versions of typer bundle a click of their own.
    source = ctx.get_parameter_source("token")
    is_token_visible = source is not None and source.name == "COMMANDLINE"
    if is_token_visible and token_file is not None:
        raise ConfigError("--token and --token-file exclude each other.")
    if max_sessions is None:
        environment = find_environment(spec)
        max_sessions = (environment.max_sessions or 1024) if environment.concurrent else 1
    config = ServeConfig(
        host=host,
        port=port,
        max_sessions=max_sessions,
        max_sessions_per_client=max_sessions_per_client,
        workers=workers,
        token=_read_token(token_file) if token_file is not None else token,
        allow_no_token=allow_no_token,
        allow_hosts=tuple(allow_hosts or ()),
        allow_origins=tuple(allow_origins or ()),
        step_timeout=step_timeout or None,
        idle_timeout=idle_timeout or None,
        queue_timeout=queue_timeout,
        reconnect_timeout=reconnect_timeout,
        send_timeout=send_timeout,
        max_frame=int(max_frame_mb * MIB),
    )

    def print_urls(url: str) -> None:
        processes = f"{workers} workers" if workers > 1 else "one process"
        limits = f"up to {max_sessions} sessions, {processes}"
        print_if_read(
            f"[bold]{spec}[/] is served on [bold]{url}[/] ({limits})",
            f"  play       {url}/",
            f"  WebSocket  {url.replace('http', 'ws', 1)}/ws",
            f"  MCP        {url}/mcp",
            f"  docs       {url}/docs",
            "Press Ctrl-C to stop; running steps finish first.",
        )
        if is_token_visible:
            console(stderr=True).print(
                "Other users of this machine can read --token in the process list: "
                "set LUDUS_TOKEN or give --token-file instead.",
                style="yellow",
            )

    run(spec, config, on_ready=print_urls)
    print_if_read("Stopped.")


def _read_token(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--token-file {file} cannot be read: {reason}.") from None
    if not token or not token.isprintable() or " " in token:
        raise ConfigError(f"--token-file {file} must contain one token on one line.")
    return token
