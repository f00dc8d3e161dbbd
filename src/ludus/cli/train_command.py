"""What `ludus train` does once its options are read: train, show it, tell what came of it, upload.

Where several processes train together, only the first of them speaks and uploads.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ludus.cli.display.console import escape_control_chars
from ludus.errors import ConfigError, LudusError

if TYPE_CHECKING:
    from ludus.cli.display.sft_progress import TrainMetrics
    from ludus.cli.display.sft_summary import TrainSummary
    from ludus.cli.display.train_display import TrainDisplay
    from ludus.train import TrainProgress, TrainResult

_MIN_NAME_WIDTH = 10
"""How wide the names of the lines at the end are, at the least."""


@dataclass(frozen=True, slots=True)
class HubPush:
    """Where the model goes when it is done."""

    repo_id: str
    private: bool

    @classmethod
    def from_options(cls, repo_id: str | None, *, private: bool) -> HubPush | None:
        """Checked as far as it can be without asking the Hub."""
        if repo_id is None:
            if private:
                raise ConfigError("--private is about the Hub. Add --push-to-hub USER/NAME.")
            return None
        from ludus.publish.hub_upload import MODEL, check_login, check_repo_id

        check_repo_id(repo_id, MODEL)
        check_login()
        return cls(repo_id, private)

    def create_repo(self) -> None:
        """Before the first step: only the Hub knows whether it will take the model."""
        from ludus.publish.hub_upload import MODEL, open_repo

        open_repo(self.repo_id, MODEL, private=self.private)

    def upload(self, folder: Path, retry: str) -> str:
        """The model in this folder; its address."""
        from ludus.publish.model_upload import push_model

        card = _model_card(folder, self.repo_id)
        return push_model(folder, self.repo_id, card=card, private=self.private, retry=retry)


def run_training(
    stage: Callable[[TrainProgress], TrainResult],
    out: Path,
    *,
    metrics: TrainMetrics,
    summary: TrainSummary,
    overwrite: bool,
    push: HubPush | None,
    as_json: bool,
) -> None:
    """Train, and say what came of it."""
    from ludus.cli.display.train_display import train_display

    first = os.environ.get("RANK", "0") == "0"
    again = "the same command without --overwrite" if overwrite else "the same command"
    checked = push.create_repo if push is not None and first else None
    with _report_errors(first, as_json=as_json):
        # What those print who keep the curves is no result.
        with (
            train_display(metrics, as_json=as_json, quiet=not first, on_checked=checked) as watch,
            redirect_stdout(sys.stderr),
        ):
            outcome = _run_stage(stage, watch, out, again)
        if first:
            _print_result(outcome, summary, again, as_json=as_json)
        _exit_if_stopped(outcome)
        if first and push is not None:
            url = push.upload(outcome.folder, again)
            typer.echo(json.dumps({"event": "pushed", "url": url}) if as_json else f"Model: {url}")


def _run_stage(
    stage: Callable[[TrainProgress], TrainResult], watch: TrainDisplay, out: Path, again: str
) -> TrainResult:
    """Who cannot wait for the end of a step is told what that costs."""
    try:
        return stage(watch)
    except KeyboardInterrupt:
        if not watch.has_begun:
            raise
        from ludus.train.output.checkpoints import latest_checkpoint, read_state

        checkpoint = latest_checkpoint(out.expanduser())
        standing = None if checkpoint is None else read_state(checkpoint)
        kept = f"goes on after step {standing.step:,}" if standing else "begins anew"
        raise KeyboardInterrupt(f"Stopped at once; {again} {kept}.") from None


@contextmanager
def _report_errors(first: bool, *, as_json: bool) -> Iterator[None]:
    """Errors are told once, and to machines as well."""
    try:
        yield
    except LudusError as error:
        if not first:
            raise typer.Exit(1) from None
        if as_json:
            typer.echo(json.dumps({"event": "error", "message": str(error)}))
        raise


def _exit_if_stopped(outcome: TrainResult) -> None:
    """A run that was stopped ends with the signal's number, as a shell expects."""
    from ludus.cli.display.train_display import EXIT_CODES

    if outcome.stopped is not None:
        raise typer.Exit(EXIT_CODES.get(outcome.stopped, 1))


def _print_result(outcome: TrainResult, ending: TrainSummary, again: str, *, as_json: bool) -> None:
    if as_json:
        told = {"folder": str(outcome.folder), **ending.as_json(outcome)}
        told |= {"steps": outcome.steps, "stopped": outcome.stopped}
        typer.echo(json.dumps({"event": "done", **told}, allow_nan=False))
    elif outcome.stopped is not None:
        typer.echo(f"Stopped at step {outcome.steps:,}; {again} goes on from there.")
    else:
        lines = ending.lines(outcome)
        width = max(_MIN_NAME_WIDTH, *(len(name) + 2 for name, _ in lines))
        for name, value in lines:
            typer.echo(escape_control_chars(f"{name:<{width}}{value}"))
        for line in ending.next_steps(outcome):
            typer.echo(escape_control_chars(line))


def _model_card(folder: Path, repo_id: str) -> str:
    """The card, under the model's name on the Hub; a README.md of the user's own is kept."""
    from ludus.train.output.model_card import CARD_FILE, build_model_card
    from ludus.train.output.record import read_record

    own, record = folder / CARD_FILE, read_record(folder)
    written = own.read_text(encoding="utf-8-sig") if own.is_file() else ""
    if record is None or (written and written != build_model_card(record, name=str(folder))):
        return written
    return build_model_card(record, name=repo_id)
