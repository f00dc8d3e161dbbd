"""`ludus`: puts the commands together, and turns our errors into one red line."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ludus import __version__
from ludus.cli.commands import (
    check,
    collect,
    curate,
    diagnose,
    envs,
    evaluate,
    import_cmd,
    init,
    lint,
    play,
    runs,
    serve,
    show,
    train,
)
from ludus.cli.display.console import print_error
from ludus.errors import LudusError

INTERRUPTED_EXIT_CODE = 130


class CommandGroup(TyperGroup):
    """A command that is interrupted ends with a line; one that stopped by itself has said why."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            print_error(str(interrupt) or "Interrupted.")
            raise typer.Exit(INTERRUPTED_EXIT_CODE) from None


app = typer.Typer(
    name="ludus",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("envs")(envs.envs)
app.command("serve")(serve.serve)
app.command("check")(check.check)
app.command("play")(play.play)
app.command("collect")(collect.collect)
app.command("import")(import_cmd.import_rollouts)
app.command("curate")(curate.curate)
app.command("eval")(evaluate.evaluate)
app.add_typer(train.app, name="train")
app.command("diagnose")(diagnose.diagnose)
app.command("runs")(runs.runs)
app.command("show")(show.show)
app.command("init")(init.init)
app.command("lint")(lint.lint)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Turn an environment into a better language-model agent."""


def main() -> None:
    """The `ludus` program."""
    try:
        app()
    except LudusError as error:
        # Of several processes that train together, one speaks.
        if os.environ.get("RANK", "0") == "0":
            print_error(str(error))
        sys.exit(1)
