"""`ludus serve` and `ludus serve-model`: serve an environment, or a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.flags import command
from ludus.errors import MissingExtra
from ludus.options import Option
from ludus.serve.config import ModelServeConfig, ServeConfig, limit_sessions

if TYPE_CHECKING:
    from ludus.serve.model.model_server import ServedModel


@command
def serve_command(
    spec: common.ServedSpec,
    *,
    config: ServeConfig,
) -> None:
    """Serve an environment to any OpenEnv or MCP client.

    Example: ludus serve reasoning_gym:chain_sum --port 8000
    """
    try:
        from ludus.serve.server import serve
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Serving") from error
    from rich.markup import escape

    from ludus.cli.display.console import console, print_if_read
    from ludus.cli.flags import name_flags
    from ludus.environment.registry import find_environment

    environment = find_environment(spec)
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
        if environment.note:
            console(stderr=True).print(name_flags(environment.note), style="yellow", markup=False)

    serve(spec, config, on_ready=print_urls)
    print_if_read("Stopped.")


@command
def serve_model_command(
    model: Annotated[str, Option(metavar="MODEL"), "Folder, Hub id or smollm2."],
    *,
    config: ModelServeConfig,
    temperature: Annotated[
        float | None,
        Option("Sampling", default="the model's default"),
        "Sampling temperature, if a request has none.",
    ] = None,
    thinking: common.Thinking = None,
    device: Annotated[
        str | None, Option(default="the fastest available"), "cuda, cuda:1, mps or cpu."
    ] = None,
) -> None:
    """Serve a model to any client of OpenAI's API, and record its conversations.

    Examples:

    ludus serve-model models/wordle --port 8001

    ludus serve-model smollm2 --record runs/my-agent
    """
    try:
        from ludus.serve.model.model_server import serve_model
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Serving") from error
    from rich.markup import escape

    from ludus.cli.display.console import console, print_if_read
    from ludus.policy.agent import PolicyAgent
    from ludus.policy.chat.template_kwargs import THINKING_VARIABLE
    from ludus.policy.model_ref import expand_home

    agent = PolicyAgent(
        expand_home(model),
        temperature=temperature,
        device=device,
        chat_template_kwargs={} if thinking is None else {THINKING_VARIABLE: thinking},
    )
    console(stderr=True).print(f"Loading {model} ...", style="dim", markup=False)

    def print_urls(served: ServedModel) -> None:
        print_if_read(
            f"[bold]{escape(served.name)}[/] is served on [bold]{served.url}/v1[/]",
            f"  engine     {served.engine}; up to {served.max_batch} replies at once",
            f"  try it     ludus collect wordle --agent openai:{escape(served.name)} "
            f"--llm-endpoint {served.url}/v1",
            *([f"  recorded   {escape(str(config.record))}"] if config.record is not None else []),
            "Press Ctrl-C to stop; running requests finish first.",
        )

    num_recorded = serve_model(agent, config, on_ready=print_urls)
    recorded = f" {num_recorded} episodes recorded in {config.record}." if config.record else ""
    print_if_read(f"Stopped.{recorded}")
