"""`ludus serve-model`: serve a local model to clients of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from ludus.cli import common
from ludus.cli.program import command
from ludus.cli.server_options import TokenFile, resolve_token, warn_of_visible_token
from ludus.errors import MissingExtra
from ludus.options import Option, parse_assignments
from ludus.serve.model.model_config import ModelServeConfig

if TYPE_CHECKING:
    from ludus.serve.model.model_server import ServedModel


@command
def serve_model(
    model: Annotated[str, Option(metavar="MODEL"), "Folder, .gguf file, Hub id or smollm2."],
    *,
    config: ModelServeConfig,
    max_batch: Annotated[
        int | None,
        Option("Limits", advanced=True, default="256 with the Triton engine, otherwise 64"),
        "Maximum number of replies that are decoded at once.",
    ] = None,
    temperature: Annotated[
        float | None,
        Option("Sampling", default="the model's default"),
        "Sampling temperature, if a request has none.",
    ] = None,
    extra: Annotated[
        Mapping[str, Any],
        Option("Sampling", advanced=True, metavar="KEY=VALUE|JSON", combine=parse_assignments),
        "Other defaults of sampling, such as top_p=0.9; repeatable.",
    ] = {},
    chat_template_kwargs: Annotated[
        Mapping[str, Any],
        Option("Sampling", advanced=True, metavar="KEY=VALUE|JSON", combine=parse_assignments),
        "Argument of the chat template; repeatable.",
    ] = {},
    thinking: common.Thinking = None,
    device: Annotated[
        str | None, Option(default="the fastest available"), "cuda, cuda:1, mps or cpu."
    ] = None,
    dtype: Annotated[str | None, Option(hidden=True), "bfloat16, float16 or float32."] = None,
    token_file: TokenFile = None,
) -> None:
    """Serve a model to any client of OpenAI's API, and record its conversations.

    Examples:

    ludus serve-model models/wordle --port 8001

    ludus serve-model smollm2 --record runs/my-agent
    """
    try:
        from ludus.serve.model.model_server import serve_model as run
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Serving") from error
    from rich.markup import escape

    from ludus.cli.display.console import console, print_if_read
    from ludus.policy.agent import PolicyAgent
    from ludus.policy.model_ref import expand_home

    config = replace(config, token=resolve_token(config.token, token_file))
    agent = PolicyAgent(
        expand_home(model),
        temperature=temperature,
        extra=extra,
        device=device,
        dtype=dtype,
        chat_template_kwargs=common.template_kwargs(chat_template_kwargs, thinking),
        max_batch=max_batch,
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
        warn_of_visible_token()

    num_recorded = run(agent, config, on_ready=print_urls)
    if config.record is not None:
        print_if_read(f"Stopped. {num_recorded} episodes recorded in {config.record}.")
    else:
        print_if_read("Stopped.")
