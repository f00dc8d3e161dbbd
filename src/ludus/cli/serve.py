"""`ludus serve`: an environment on the OpenEnv wire."""

from __future__ import annotations

from typing import Annotated

import typer

from ludus.errors import MissingExtra


def serve(
    spec: Annotated[
        str, typer.Argument(help="name, name:variant or package.module:Class.", metavar="SPEC")
    ],
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0 takes a free one.")] = 8000,
    max_sessions: Annotated[
        int | None,
        typer.Option(min=1, help="Sessions at once, over all workers.", show_default="1024"),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the port.")] = 1,
    token: Annotated[
        str | None,
        typer.Option(envvar="LUDUS_TOKEN", help="Who does not know it is turned away."),
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
    max_frame_mb: Annotated[float, typer.Option(min=0.001, help="Largest message, in MiB.")] = 16.0,
) -> None:
    """Serve an environment to any OpenEnv or MCP client.

    Example: ludus serve reasoning_gym:chain_sum --port 8000
    """
    try:
        from ludus.serve.run import serve as run
        from ludus.serve.settings import MIB, ServeSettings
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Serving") from error
    from ludus.cli.console import console
    from ludus.environment.registry import find

    if max_sessions is None:
        max_sessions = 1024 if find(spec).concurrent else 1
    settings = ServeSettings(
        host=host,
        port=port,
        max_sessions=max_sessions,
        workers=workers,
        token=token,
        step_timeout=step_timeout or None,
        idle_timeout=idle_timeout or None,
        queue_timeout=queue_timeout,
        grace=grace,
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

    run(spec, settings, ready=ready)
    console().print("Stopped.")
