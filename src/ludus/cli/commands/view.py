"""`ludus view`: a local page over runs, evaluations, data sets and trained models."""

from __future__ import annotations

from typing import Annotated

from ludus.cli.program import command
from ludus.errors import MissingExtra
from ludus.options import Option


@command
def view(
    folders: Annotated[
        list[str] | None,
        Option(metavar="DIR", default="runs, evals, data and models"),
        "Runs, evaluations, data sets or trained models, or folders that hold some; also "
        "JSONL and Parquet files, names of runs, and `last`.",
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
        from ludus.viewer.app import view as run
        from ludus.viewer.library import default_folders
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Viewing") from error
    from ludus.cli.display.console import print_if_read
    from ludus.cli.program import name_command_flags
    from ludus.cli.run_lookup import resolve_run_path

    def print_address(address: str) -> None:
        print_if_read(f"View    [bold]{address}[/]", "Press Ctrl-C to stop.")
        if open_browser:
            import webbrowser

            webbrowser.open(address)

    paths = [resolve_run_path(folder) for folder in folders or ()]
    run(
        paths or default_folders(),
        port=port,
        on_ready=print_address,
        name_flags=name_command_flags,
    )
    print_if_read("Stopped.")
