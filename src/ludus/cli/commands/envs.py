"""`ludus envs`: list the installed environments, or describe one."""

from __future__ import annotations

from typing import Annotated

from ludus.cli.program import command
from ludus.options import Option


@command
def envs(
    name: Annotated[str | None, Option(), "Environment to describe, such as wordle."] = None,
) -> None:
    """List the installed environments, or describe one.

    Examples: ludus envs; ludus envs wordle
    """
    import inspect

    from rich.markup import escape
    from rich.table import Table

    from ludus.cli.display.console import console
    from ludus.environment.registry import find_environment, registered_environments
    from ludus.errors import LudusError

    out = console()
    if name is not None:
        environment = find_environment(name)
        out.print(f"[bold]{environment.id}[/]\n")
        description = inspect.getdoc(environment.cls) or environment.description
        out.print(description, markup=False, soft_wrap=True)
        variants = list(getattr(environment.cls, "variants", lambda: ())())
        if variants and environment.variant is None:
            out.print(f"\n[bold]{len(variants)} variants[/] ({environment.name}:VARIANT)")
            out.print(", ".join(variants), markup=False)
        return
    table = Table("name", "description", "tools", "package", box=None, header_style="bold")
    for name, point in registered_environments().items():
        package = point.dist.name if point.dist else "?"
        try:
            environment = find_environment(name)
            tools = ", ".join(tool.name for tool in environment.tools or ())
            table.add_row(name, escape(environment.description), tools, package)
        except LudusError as error:
            table.add_row(name, f"[red]{escape(str(error))}[/]", "", package)
    out.print(table)
