"""`ludus doctor`: check the installation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from ludus.cli import common
from ludus.cli.program import command

if TYPE_CHECKING:
    from ludus.cli.installation.findings import Finding

_STYLES = {"ok": "green", "missing": "dim", "warning": "yellow", "broken": "bold red"}


@command
def doctor(*, as_json: common.JsonObject = False) -> None:
    """Check the installation: packages, extras, GPU, programs, folders, keys.

    Ends with exit code 1 if something that is needed is broken. Optional parts that are not
    installed are listed with the command that installs them.

    Example: ludus doctor
    """
    from ludus.cli.display.console import console
    from ludus.cli.display.status import PhaseView, terminal_status
    from ludus.rollout.progress import PhaseProgress

    with terminal_status() as status:
        status.show(PhaseView(PhaseProgress("checking the installation")))
        findings = list(_findings())
    broken = any(finding.status == "broken" for finding in findings)
    if as_json:
        report = {"ok": not broken, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, indent=2))
    else:
        console().print(_table(findings))
        _print_advice(findings)
    if broken:
        raise SystemExit(1)


def _findings() -> Iterator[Finding]:
    from ludus.cli.installation import machine, packages

    yield from packages.check_python()
    yield from packages.check_packages()
    yield from machine.check_torch()
    yield from machine.check_programs()
    yield from machine.check_environments()
    yield from machine.check_folders()
    yield from machine.check_accounts()


def _table(findings: list[Finding]) -> object:
    from rich.table import Table
    from rich.text import Text

    from ludus.cli.display.console import escape_control_chars

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(
            Text(finding.subject),
            Text(finding.status, style=_STYLES[finding.status]),
            Text(escape_control_chars(finding.detail)),
        )
    return table


def _print_advice(findings: list[Finding]) -> None:
    """Print what to do: first about what is broken, last about optional parts."""
    for status, title in (
        ("broken", "Broken:"),
        ("warning", "Warnings:"),
        ("missing", "Optional, missing:"),
    ):
        with_advice = [each for each in findings if each.status == status and each.advice]
        if with_advice:
            print(f"\n{title}")
        for finding in with_advice:
            print(f"  {finding.subject:<17} {finding.advice}")
