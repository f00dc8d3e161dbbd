"""`ludus serve`: serve an environment to OpenEnv and MCP clients."""

from __future__ import annotations

from dataclasses import replace

from ludus.cli import common
from ludus.cli.program import command
from ludus.cli.server_options import TokenFile, resolve_token, warn_of_visible_token
from ludus.errors import MissingExtra
from ludus.serve.config import ServeConfig, limit_sessions


@command
def serve(
    spec: common.ServedSpec,
    *,
    config: ServeConfig,
    token_file: TokenFile = None,
    action: common.Action = None,
) -> None:
    """Serve an environment to any OpenEnv or MCP client.

    Example: ludus serve reasoning_gym:chain_sum --port 8000
    """
    try:
        from ludus.serve.server import serve as run
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Serving") from error
    from rich.markup import escape

    from ludus.cli.display.console import console, print_if_read
    from ludus.cli.program import name_flags
    from ludus.environment.registry import find_environment

    environment = find_environment(spec)
    config = replace(config, token=resolve_token(config.token, token_file))
    config = limit_sessions(config, environment)

    def print_urls(url: str) -> None:
        processes = f"{config.workers} workers" if config.workers > 1 else "one process"
        limits = f"up to {config.max_sessions} sessions, {processes}"
        print_if_read(
            f"[bold]{escape(spec)}[/] is served on [bold]{url}[/] ({limits})",
            f"  play       {url}/",
            f"  WebSocket  {url.replace('http', 'ws', 1)}/ws",
            f"  MCP        {url}/mcp",
            f"  docs       {url}/docs",
            "Press Ctrl-C to stop; running steps finish first.",
        )
        warn_of_visible_token()
        if environment.note:
            console(stderr=True).print(name_flags(environment.note), style="yellow", markup=False)

    run(spec, config, on_ready=print_urls)
    print_if_read("Stopped.")
