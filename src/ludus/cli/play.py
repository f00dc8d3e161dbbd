"""`ludus play`: a person plays in the terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from rich.console import Console

    from ludus.client.session import Session, StepResult
    from ludus.data.tools import ToolSpec


def play(
    spec: Annotated[
        str, typer.Argument(help="name, name:variant, package.module:Class or URL.", metavar="SPEC")
    ],
    seed: Annotated[int | None, typer.Option(min=0, help="Which episode.")] = None,
    task: Annotated[
        str, typer.Option(help="More task arguments, as JSON: '{\"length\": 6}'.")
    ] = "{}",
    token: Annotated[
        str | None, typer.Option(envvar="LUDUS_TOKEN", help="For a server that wants one.")
    ] = None,
) -> None:
    """Play an episode yourself, with the tools that a model would have.

    Example: ludus play wordle --seed 7
    """
    from anyio.from_thread import start_blocking_portal

    try:
        arguments = json.loads(task)
    except ValueError as error:
        raise typer.BadParameter(f"--task is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise typer.BadParameter('--task wants a JSON object, such as {"length": 6}.')
    if seed is not None:
        arguments["seed"] = seed
    # The session lives on a loop of its own: it answers the server's pings while the person thinks.
    with start_blocking_portal() as portal:
        _play(portal, spec, arguments, token)


def _play(portal: BlockingPortal, spec: str, task: dict[str, Any], token: str | None) -> None:
    from ludus.cli.console import console
    from ludus.client.endpoint import connect

    out = console()
    session = connect(spec, token=token).session()
    portal.call(session.open)
    try:
        result = portal.call(lambda: session.reset(**task))
        _show(out, result)
        total = 0.0
        while not result.done:
            try:
                tool = _choose(out, session)
                arguments = _ask(out, tool)
            except EOFError:
                out.print("\nYou left before the end.")
                return
            result = portal.call(session.call, tool.name, arguments)
            total += result.reward or 0.0
            _show(out, result)
        parts = ", ".join(f"{name} {value:g}" for name, value in result.rewards.items())
        out.print(f"[bold]Reward {total:g}[/]" + (f"  ({parts})" if parts else ""))
    finally:
        portal.call(session.close)


def _show(out: Console, result: StepResult[dict[str, Any]]) -> None:
    from ludus.data.content import plain

    style = "red" if result.error else ""
    out.print(plain(result.content), markup=False, style=style)


def _choose(out: Console, session: Session) -> ToolSpec:
    tools = {tool.name: tool for tool in session.tools}
    if len(tools) == 1:
        return next(iter(tools.values()))
    while True:
        name = out.input(f"[bold]tool[/] ({', '.join(tools)}): ").strip()
        if name in tools:
            return tools[name]


def _ask(out: Console, tool: ToolSpec) -> dict[str, Any]:
    """One line per argument; an empty line leaves an optional one out."""
    required = tool.input_schema.get("required", ())
    given = {}
    for name, schema in tool.input_schema.get("properties", {}).items():
        choices = "/".join(str(choice) for choice in schema.get("enum", ()))
        value = out.input(f"[bold]{name}[/]" + (f" ({choices})" if choices else "") + ": ")
        if value or name in required:
            given[name] = value
    return given
