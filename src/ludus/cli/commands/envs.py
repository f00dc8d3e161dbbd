"""`ludus envs`: what there is to play."""

from __future__ import annotations

from typing import Annotated

import typer


def envs(
    name: Annotated[
        str | None, typer.Argument(help="One environment, to see all that it says of itself.")
    ] = None,
) -> None:
    """List the environments that are installed, or describe one.

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

    table = Table("name", "what it is", "tools", "package", box=None, header_style="bold")
    for name, point in registered_environments().items():
        package = point.dist.name if point.dist else "?"
        try:
            contract = find_environment(name)
            tools = ", ".join(tool.name for tool in contract.tools or ())
            table.add_row(name, escape(contract.description), tools, package)
        except LudusError as error:
            table.add_row(name, f"[red]{escape(str(error))}[/]", "", package)
    console().print(table)


def _print_description(spec: str) -> None:
    import inspect

    from ludus.cli.display.console import console
    from ludus.environment.registry import find_environment

    contract = find_environment(spec)
    out = console()
    out.print(f"[bold]{contract.id}[/]\n")
    words = inspect.getdoc(contract.cls) or contract.description
    out.print(words, markup=False, soft_wrap=True)
    variants = list(getattr(contract.cls, "variants", lambda: ())())
    if variants and contract.variant is None:
        out.print(f"\n[bold]{len(variants)} variants[/] ({contract.name}:VARIANT)")
        out.print(", ".join(variants), markup=False)
