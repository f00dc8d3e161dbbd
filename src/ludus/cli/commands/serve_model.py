"""`ludus serve-model`: serve a local model to clients of OpenAI's API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ludus.cli import common_options as common
from ludus.cli import server_options as options
from ludus.cli.common_options import (
    expand_user_path,
    parse_duration,
    parse_json_object,
    parse_template_options,
)
from ludus.errors import MissingExtra

if TYPE_CHECKING:
    from ludus.serve.model.model_server import ServedModel


def serve_model(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder, .gguf file, Hub id or smollm2.")
    ],
    host: options.Host = "127.0.0.1",
    port: options.Port = 8001,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            help="The model's name in the API.", show_default="the folder's name, or the Hub id"
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            parser=expand_user_path,
            help="Run folder in which conversations are recorded as episodes.",
            show_default="not recorded",
        ),
    ] = None,
    session_timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time without a call after which a recorded session ends without a reward.",
        ),
    ] = "10m",
    max_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of replies that are decoded at once.",
            show_default="256 with the Triton engine, otherwise 64",
        ),
    ] = None,
    max_queue: Annotated[
        int,
        typer.Option(min=0, help="Maximum number of requests that wait; more are refused (429)."),
    ] = 1024,
    max_tokens: Annotated[
        int,
        typer.Option(
            min=1, help="Largest max_tokens of a request, and its default where it has none."
        ),
    ] = 4096,
    max_body_mb: Annotated[
        float, typer.Option(min=0.001, help="Maximum size of a request, in MiB.")
    ] = 16.0,
    temperature: common.Temperature = None,
    extra: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help='Other defaults of sampling: \'{"top_p": 0.9, "top_k": 20}\'.'
        ),
    ] = None,
    thinking: common.Thinking = None,
    chat_template_kwargs: common.ChatTemplateKwargs = None,
    device: common.Device = None,
    dtype: common.Dtype = None,
    token: options.ServerToken = None,
    token_file: options.TokenFile = None,
    allow_no_token: options.AllowNoToken = False,
    allow_hosts: options.AllowHosts = None,
    allow_origins: options.AllowOrigins = None,
) -> None:
    """Serve a model to any client of OpenAI's API, and record its conversations.

    Examples:

    ludus serve-model models/wordle --port 8001

    ludus serve-model smollm2 --record runs/my-agent
    """
    try:
        from ludus.serve.config import MIB, split_names
        from ludus.serve.model.model_config import ModelServeConfig
        from ludus.serve.model.model_server import serve_model as run
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Serving") from error
    from rich.markup import escape

    from ludus.cli.display.console import console, print_if_read
    from ludus.policy.agent import PolicyAgent
    from ludus.policy.model_ref import expand_home

    server_token = options.resolve_token(ctx, token, token_file)
    config = ModelServeConfig(
        host=host,
        port=port,
        token=server_token.value,
        allow_no_token=allow_no_token,
        allow_hosts=split_names(allow_hosts),
        allow_origins=split_names(allow_origins),
        served_name=served_model_name,
        max_queue=max_queue,
        max_tokens=max_tokens,
        max_body=int(max_body_mb * MIB),
        record=record,
        session_timeout=parse_duration(session_timeout, "--session-timeout"),
    )
    agent = PolicyAgent(
        expand_home(model),
        temperature=temperature,
        extra=parse_json_object(extra, "--extra"),
        device=device,
        dtype=dtype,
        chat_template_kwargs=parse_template_options(thinking, chat_template_kwargs),
        max_batch=max_batch,
    )
    console(stderr=True).print(f"Loading {model} ...", style="dim", markup=False)

    def print_urls(served: ServedModel) -> None:
        print_if_read(
            f"[bold]{escape(served.name)}[/] is served on [bold]{served.url}/v1[/]",
            f"  engine     {served.engine}; up to {served.max_batch} replies at once",
            f"  try it     ludus collect wordle --llm-endpoint {served.url}/v1 "
            f"--model {escape(served.name)}",
            *([f"  recorded   {escape(str(record))}"] if record is not None else []),
            "Press Ctrl-C to stop; running requests finish first.",
        )
        server_token.warn_if_visible()

    num_recorded = run(agent, config, on_ready=print_urls)
    if record is not None:
        print_if_read(f"Stopped. {num_recorded} episodes recorded in {record}.")
    else:
        print_if_read("Stopped.")
