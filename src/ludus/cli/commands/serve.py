"""`ludus serve`: serve an environment to OpenEnv and MCP clients."""

from __future__ import annotations

from typing import Annotated

import typer

from ludus.cli import common_options as common
from ludus.cli import server_options as options
from ludus.errors import MissingExtra


def serve(
    ctx: typer.Context,
    spec: common.ServedSpec,
    action: common.Action = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
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
    token: options.ServerToken = None,
    token_file: options.TokenFile = None,
    allow_no_token: options.AllowNoToken = False,
    allow_hosts: options.AllowHosts = None,
    allow_origins: options.AllowOrigins = None,
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
        from ludus.serve.config import MIB, ServeConfig, split_names
        from ludus.serve.server import serve as run
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Serving") from error
    from rich.markup import escape

    from ludus.cli.display.console import console, print_if_read
    from ludus.cli.flag_names import name_flags
    from ludus.environment.registry import find_environment

    server_token = options.resolve_token(ctx, token, token_file)
    environment = find_environment(spec)
    if max_sessions is None:
        max_sessions = (environment.max_sessions or 1024) if environment.concurrent else 1
    config = ServeConfig(
        host=host,
        port=port,
        max_sessions=max_sessions,
        max_sessions_per_client=max_sessions_per_client,
        workers=workers,
        token=server_token.value,
        allow_no_token=allow_no_token,
        allow_hosts=split_names(allow_hosts),
        allow_origins=split_names(allow_origins),
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
            f"[bold]{escape(spec)}[/] is served on [bold]{url}[/] ({limits})",
            f"  play       {url}/",
            f"  WebSocket  {url.replace('http', 'ws', 1)}/ws",
            f"  MCP        {url}/mcp",
            f"  docs       {url}/docs",
            "Press Ctrl-C to stop; running steps finish first.",
        )
        server_token.warn_if_visible()
        if environment.note:
            console(stderr=True).print(name_flags(environment.note), style="yellow", markup=False)

    run(spec, config, on_ready=print_urls)
    print_if_read("Stopped.")
