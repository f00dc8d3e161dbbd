"""`ludus envs`: list the installed environments, or describe one."""

from __future__ import annotations

from typing import Annotated

import typer


def envs(
    name: Annotated[
        str | None, typer.Argument(help="Environment to describe, such as wordle.")
    ] = None,
) -> None:
    """List the installed environments, or describe one.

    Examples: ludus envs; ludus envs wordle
    """
    if name is None:
        _print_list()
    else:
        _print_description(name)


def _print_list() -> None:
    from rich.markup import escape
    from rich.table import Table

    from ludus.cli.display.console import console
    from ludus.environment.registry import find_environment, registered_environments
    from ludus.errors import LudusError

    table = Table("name", "description", "tools", "package", box=None, header_style="bold")
    for name, point in registered_environments().items():
        package = point.dist.name if point.dist else "?"
        try:
            environment = find_environment(name)
            tools = ", ".join(tool.name for tool in environment.tools or ())
            table.add_row(name, escape(environment.description), tools, package)
        except LudusError as error:
            table.add_row(name, f"[red]{escape(str(error))}[/]", "", package)
    console().print(table)


def _print_description(spec: str) -> None:
    import inspect

    from ludus.cli.display.console import console
    from ludus.environment.registry import find_environment

    environment = find_environment(spec)
    out = console()
    out.print(f"[bold]{environment.id}[/]\n")
    description = inspect.getdoc(environment.cls) or environment.description
    out.print(description, markup=False, soft_wrap=True)
    variants = list(getattr(environment.cls, "variants", lambda: ())())
    if variants and environment.variant is None:
        out.print(f"\n[bold]{len(variants)} variants[/] ({environment.name}:VARIANT)")
        out.print(", ".join(variants), markup=False)
