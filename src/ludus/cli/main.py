"""The `ludus` program: its commands, and errors as one red line on stderr."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping
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

_SECTIONS: Mapping[str, Mapping[str, tuple[typer.Typer | Callable[..., None], str]]] = {
    "Start": {
        "run": (run.run, "Run a recipe: the whole loop from one file."),
        "new": (new.new, "Copy a built-in recipe to edit it."),
        "doctor": (doctor.doctor, "Check the installation, and say how to complete it."),
    },
    "Environments": {
        "envs": (envs.envs, "List the installed environments, or describe one."),
        "play": (play.play, "Play an episode yourself."),
        "init": (init.init, "Create a package for an environment of your own."),
        "check": (check.check, "Test what training relies on."),
        "serve": (serve.serve, "Serve an environment to OpenEnv and MCP clients."),
        "build": (build.build, "Package an environment as a container."),
    },
    "The loop": {
        "collect": (collect.collect, "Play episodes concurrently, and store all of them."),
        "import": (import_cmd.import_rollouts, "Convert rollouts of other tools."),
        "rescore": (rescore.rescore, "Give stored episodes new rewards."),
        "curate": (curate.curate, "Select episodes, and write rows for training."),
        "lint": (lint.lint, "Check rows, and show which tokens are trained on."),
        "train": (train.app, "Train a model: SFT, DPO, GRPO, or rounds with a tutor."),
        "diagnose": (diagnose.diagnose, "Say whether a GRPO run learned, and what to change."),
        "eval": (evaluate.evaluate, "Compare models on the same held-out tasks."),
        "push": (push.app, "Upload environments, data sets and models to the Hub."),
        "serve-model": (serve_model.serve_model, "Serve a model behind OpenAI's API."),
    },
    "Results": {
        "runs": (runs.runs, "List runs with their rewards."),
        "show": (show.show, "Print an episode, a row or an evaluation."),
        "view": (view.view, "Look at everything in the browser."),
        "report": (report.report, "Write one page to share."),
    },
}
"""The commands by section of the help, with what each does in one line."""


class MainGroup(TyperGroup):
    """The program: lists its commands in sections.

    An interrupted command ends with one line: the message of the exception, if it has one.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run a command of the program; Ctrl-C ends it with exit code 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            print_error(str(interrupt) or "Interrupted.")
            raise typer.Exit(EXIT_CODES[INTERRUPTED]) from None

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for section in _SECTIONS.values() for name in section]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, section in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()])


app = typer.Typer(
    name="ludus",
    cls=MainGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _section in _SECTIONS.values():
    for _name, (_target, _text) in _section.items():
        if isinstance(_target, typer.Typer):
            app.add_typer(_target, name=_name, short_help=_text)
        else:
            app.command(_name, cls=FlagCommand, short_help=_text)(_target)


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
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise
        print_error(f"{str(error.filename)[:100]} cannot be used: {error.strerror}.")
        sys.exit(1)
