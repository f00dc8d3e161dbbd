"""The `ludus` program: its commands, and errors as one red line on stderr."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ludus.cli.commands import (
    build,
    check,
    collect,
    curate,
    diagnose,
    doctor,
    envs,
    evaluate,
    import_cmd,
    init,
    lint,
    new,
    play,
    push,
    report,
    rescore,
    run,
    runs,
    serve,
    serve_model,
    show,
    train,
    view,
)
from ludus.cli.display.console import print_error
from ludus.cli.display.signals import EXIT_CODES, INTERRUPTED
from ludus.cli.flag_names import FlagCommand, name_flags
from ludus.errors import LudusError


class MainGroup(TyperGroup):
    """Ends an interrupted command with one line: the message of the exception, if it has one."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command of the program; Ctrl-C ends it with exit code 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            print_error(str(interrupt) or "Interrupted.")
            raise typer.Exit(EXIT_CODES[INTERRUPTED]) from None


app = typer.Typer(
    name="ludus",
    cls=MainGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", cls=FlagCommand)(run.run)
app.command("new", cls=FlagCommand)(new.new)
app.command("envs", cls=FlagCommand)(envs.envs)
app.command("serve", cls=FlagCommand)(serve.serve)
app.command("serve-model", cls=FlagCommand)(serve_model.serve_model)
app.command("check", cls=FlagCommand)(check.check)
app.command("play", cls=FlagCommand)(play.play)
app.command("collect", cls=FlagCommand)(collect.collect)
app.command("import", cls=FlagCommand)(import_cmd.import_rollouts)
app.command("rescore", cls=FlagCommand)(rescore.rescore)
app.command("curate", cls=FlagCommand)(curate.curate)
app.command("eval", cls=FlagCommand)(evaluate.evaluate)
app.add_typer(train.app, name="train")
app.command("diagnose", cls=FlagCommand)(diagnose.diagnose)
app.command("runs", cls=FlagCommand)(runs.runs)
app.command("show", cls=FlagCommand)(show.show)
app.command("view", cls=FlagCommand)(view.view)
app.command("report", cls=FlagCommand)(report.report)
app.command("init", cls=FlagCommand)(init.init)
app.command("lint", cls=FlagCommand)(lint.lint)
app.command("build", cls=FlagCommand)(build.build)
app.add_typer(push.app, name="push")
app.command("doctor", cls=FlagCommand)(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ludus.cli.installation.packages import RELEVANT_PACKAGES
        from ludus.data.versions import versions

        for name, version in versions(*RELEVANT_PACKAGES).items():
            typer.echo(f"{name} {version}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print versions and exit."
        ),
    ] = False,
) -> None:
    """Collect episodes, curate them, and train and evaluate language-model agents."""


def main() -> None:
    """Run the `ludus` program."""
    try:
        app()
    except LudusError as error:
        # With several processes (torchrun) only rank 0 prints.
        if os.environ.get("RANK", "0") == "0":
            print_error(name_flags(str(error)))
        sys.exit(1)
