"""`ludus check`: test an environment, or a served one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.program import command
from ludus.options import Option

if TYPE_CHECKING:
    from ludus.check import CheckReport


@command
def check(
    spec: common.Spec,
    *,
    seeds: Annotated[int, Option(), "Number of seeds to test."] = 5,
    sessions: Annotated[int, Option(), "Number of concurrent sessions."] = 2,
    token: common.Token = None,
    debug: common.Debug = False,
    as_json: common.JsonObject = False,
) -> None:
    """Test whether an environment works as Ludus and OpenEnv clients expect.

    Examples: ludus check wordle; ludus check my_env.py:Guess; ludus check http://localhost:8000;
    ludus check docker:echo-env:latest
    """
    import asyncio

    from ludus.check import run_checks
    from ludus.cli.display.environment_errors import record_environment_errors
    from ludus.cli.display.status import PhaseView, terminal_status
    from ludus.rollout.progress import PhaseProgress

    with record_environment_errors(debug=debug), terminal_status() as status:
        report = asyncio.run(
            run_checks(
                spec,
                seeds=seeds,
                sessions=sessions,
                token=token,
                on_check=lambda name: status.show(PhaseView(PhaseProgress(name))),
            )
        )
    if as_json:
        print(report.model_dump_json(indent=2))
    else:
        _print_report(report)
    if not report.passed:
        raise SystemExit(1)


def _print_report(report: CheckReport) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    from ludus.cli.display.console import console, escape_control_chars
    from ludus.cli.program import name_flags

    marks = {
        "pass": "[green]pass[/]",
        "warn": "[yellow]warn[/]",
        "fail": "[bold red]FAIL[/]",
        "skip": "[dim]skip[/]",
    }
    table = Table("check", "", "details", box=None, header_style="bold")
    for finding in report.findings:
        advice = f"\n→ {finding.advice}" if finding.advice else ""
        details = Text(escape_control_chars(name_flags(finding.detail + advice)))
        table.add_row(finding.check, marks[finding.verdict], details)
    # A pipe has no width: print each finding on one line.
    has_width = console().is_terminal or "COLUMNS" in os.environ
    out = console() if has_width else Console(width=10_000, highlight=False)
    out.print(table)
    failed = len(report.failures)
    verdict = f"[bold red]{failed} failed[/]" if failed else "[bold green]all passed[/]"
    console().print(f"{escape(report.spec)}: {verdict} in {report.seconds:.1f} s", emoji=False)
