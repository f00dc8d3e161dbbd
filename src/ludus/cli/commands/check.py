"""`ludus check`: the doctor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ludus.cli import common_options as given

if TYPE_CHECKING:
    from ludus.check import CheckReport


def check(
    spec: Annotated[
        str,
        typer.Argument(
            help="name, name:variant, file.py:Class, package.module:Class or URL.", metavar="SPEC"
        ),
    ],
    seeds: Annotated[int, typer.Option(min=2, help="How many seeds to try.")] = 5,
    sessions: Annotated[
        int, typer.Option(min=1, help="How many sessions must be open at once.")
    ] = 2,
    token: given.Token = None,
    debug: given.Debug = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for machines.")] = False,
) -> None:
    """Find out whether an environment keeps its promises.

    Examples: ludus check wordle; ludus check my_env.py:Guess; ludus check http://localhost:8000
    """
    import asyncio

    from ludus.check import run_checks
    from ludus.cli.display.console import console
    from ludus.cli.display.environment_errors import record_environment_errors

    with (
        record_environment_errors(debug=debug),
        console(stderr=True).status("check") as status,
    ):

        def watch(name: str) -> None:
            status.update(f"{name} …")

        report = asyncio.run(
            run_checks(spec, seeds=seeds, sessions=sessions, token=token, on_check=watch)
        )
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        _print_report(report)
    if not report.passed:
        raise typer.Exit(1)


def _print_report(report: CheckReport) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    from ludus.cli.display.console import console

    marks = {"pass": "[green]pass[/]", "fail": "[bold red]FAIL[/]", "skip": "[dim]skip[/]"}
    table = Table("check", "", "what was seen", box=None, header_style="bold")
    for finding in report.findings:
        advice = f"\n→ {finding.advice}" if finding.advice else ""
        words = Text(finding.detail + advice)
        table.add_row(finding.check, marks[finding.verdict], words)
    # A pipe has no width: each finding is one line there.
    narrow = console().is_terminal or "COLUMNS" in os.environ
    out = console() if narrow else Console(width=10_000, highlight=False)
    out.print(table)
    failed = len(report.failures)
    verdict = f"[bold red]{failed} failed[/]" if failed else "[bold green]all good[/]"
    console().print(f"{escape(report.spec)}: {verdict} in {report.seconds:.1f} s", emoji=False)
