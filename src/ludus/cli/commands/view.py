"""`ludus view` and `ludus report`: results as a local web page, or as one file to share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ludus.cli.command_line import end_if_checking
from ludus.cli.common import resolve_run_path
from ludus.cli.display.console import print_if_read
from ludus.cli.flags import command, name_command_flags
from ludus.errors import MissingExtra
from ludus.options import Option, expand_path


@command
def view_command(
    folders: Annotated[
        list[str] | None,
        Option(metavar="DIR", default="runs, evals, data and models"),
        "Runs, evaluations, data sets or trained models, or folders that hold some; also "
        "JSONL files, names of runs, and `last`.",
    ] = None,
    *,
    port: Annotated[int, Option(), "Port to bind; 0 for any free port."] = 0,
    open_browser: Annotated[
        bool, Option(name="open"), "Open the page in the default browser."
    ] = False,
) -> None:
    """Look at runs, evaluations, data sets and trainings in the browser, also while they run.

    The page is served on this machine only, under an address with a random token.

    Example: ludus view runs/wordle --open
    """
    try:
        from ludus.viewer.app import view
        from ludus.viewer.library import default_folders
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Viewing") from error

    def print_address(address: str) -> None:
        print_if_read(f"View    [bold]{address}[/]", "Press Ctrl-C to stop.")
        if open_browser:
            import webbrowser

            webbrowser.open(address)

    paths = [resolve_run_path(folder) for folder in folders or ()]
    view(
        paths or default_folders(),
        port=port,
        on_ready=print_address,
        name_flags=name_command_flags,
    )
    print_if_read("Stopped.")


@command
def report_command(
    sources: Annotated[
        list[str],
        Option(metavar="DIR"),
        "Runs (path, name or `last`), data sets, trained models and evaluations, in the "
        "order of the report.",
    ],
    *,
    out: Annotated[
        Path | None,
        Option(name="output", short="o", default="report.html", parse=expand_path),
        "File to write.",
    ] = None,
    title: Annotated[
        str | None, Option(default="titles of its sections"), "Title of the report."
    ] = None,
    samples: Annotated[
        int,
        Option(),
        "Maximum number of best and of worst transcripts per folder; 0 for none.",
    ] = 2,
) -> None:
    """Write a report to send to others: what was run, charts, verdicts and sample transcripts.

    The page is a single file, which opens from disk, runs no script and makes no request.

    Examples:

    ludus report evals/chain_sum

    ludus report runs/demo data/chain_sum models/chain_sum evals/chain_sum -o loop.html
    """
    from ludus.reporting import report

    end_if_checking()
    path = report(
        [resolve_run_path(source) for source in sources],
        out or Path("report.html"),
        title=title,
        samples=samples,
        name_flags=name_command_flags,
    )
    print(f"report: {path} ({path.stat().st_size / 1024:,.0f} KiB)")
