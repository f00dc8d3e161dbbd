"""What `ludus train` does once its options are read: train, show it, tell what came of it, upload.

Where several processes train together, only the first of them speaks and uploads.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from ludus.cli.typed import as_typed
from ludus.errors import BadSetting, LudusError

if TYPE_CHECKING:
    from ludus.train import Outcome, Settings
    from ludus.train.training import Figures


@dataclass(frozen=True, slots=True)
class Push:
    """Where the model goes when it is done."""

    repo_id: str
    private: bool

    @classmethod
    def to(cls, repo_id: str | None, *, private: bool) -> Push | None:
        """Checked as far as it can be without asking the Hub."""
        if repo_id is None:
            if private:
                raise BadSetting("--private is about the Hub. Add --push-to-hub USER/NAME.")
            return None
        from ludus.publish.hub import MODEL, check_login, check_repo_id

        check_repo_id(repo_id, MODEL)
        check_login()
        return cls(repo_id, private)

    def open(self) -> None:
        """Before the first step: only the Hub knows whether it will take the model."""
        from ludus.publish.hub import MODEL, open_repo

        open_repo(self.repo_id, MODEL, private=self.private)

    def upload(self, folder: Path, retry: str) -> str:
        """The model in this folder; its address."""
        from ludus.publish.model import push_model

        card = _card(folder, self.repo_id)
        return push_model(folder, self.repo_id, card=card, private=self.private, retry=retry)


def train(
    kind: Literal["sft", "dpo"],
    data: Path,
    model: str,
    out: Path,
    settings: Settings,
    *,
    overwrite: bool,
    push: Push | None,
    as_json: bool,
) -> None:
    """Train, and say what came of it."""
    import ludus.train as stages
    from ludus.cli.training import display

    first = os.environ.get("RANK", "0") == "0"
    stage = stages.sft if kind == "sft" else stages.dpo
    again = "the same command without --overwrite" if overwrite else "the same command"
    checked = push.open if push is not None and first else None
    with _complaining(first, as_json=as_json):
        # What those print who keep the curves is no result.
        with (
            display(as_json=as_json, quiet=not first, checked=checked) as watch,
            redirect_stdout(sys.stderr),
        ):
            outcome = stage(
                data, model, out, settings, overwrite=overwrite, command=as_typed(), watch=watch
            )
        if first:
            _tell(outcome, model, again, as_json=as_json)
        _leave(outcome)
        if first and push is not None:
            url = push.upload(outcome.folder, again)
            typer.echo(json.dumps({"event": "pushed", "url": url}) if as_json else f"Model: {url}")


@contextmanager
def _complaining(first: bool, *, as_json: bool) -> Iterator[None]:
    """Errors are told once, and to machines as well."""
    try:
        yield
    except LudusError as error:
        if not first:
            raise typer.Exit(1) from None
        if as_json:
            typer.echo(json.dumps({"event": "error", "message": str(error)}))
        raise


def _leave(outcome: Outcome) -> None:
    """A run that was stopped ends with the signal's number, as a shell expects."""
    from ludus.cli.training import EXIT_CODES

    if outcome.stopped is not None:
        raise typer.Exit(EXIT_CODES.get(outcome.stopped, 1))


def _tell(outcome: Outcome, model: str, again: str, *, as_json: bool) -> None:
    from ludus.train.record import read

    record = read(outcome.folder)
    figures = record.figures if record is not None else None
    if as_json:
        facts = figures.model_dump() if figures is not None else {}
        told = {"folder": str(outcome.folder), **facts}
        told |= {"steps": outcome.steps, "stopped": outcome.stopped}
        typer.echo(json.dumps({"event": "done", **told}, allow_nan=False))
    elif outcome.stopped is not None:
        typer.echo(f"Stopped at step {outcome.steps:,}; {again} goes on from there.")
    else:
        for name, value in _lines(outcome, figures):
            typer.echo(f"{name:<10}{value}")
        tried = ("-c", f"hf:{model}", "-c", f"hf:{outcome.folder}", "-n", "100")
        typer.echo(f"Next: ludus eval ENV {shlex.join(tried)}")


def _lines(outcome: Outcome, figures: Figures | None) -> list[tuple[str, str]]:
    from ludus.cli.figures import clock, count

    found = [("steps", f"{outcome.steps:,}{_resumed(outcome)}")]
    if figures is not None:
        if figures.first_loss is not None and figures.last_loss is not None:
            found.append(("loss", f"{figures.first_loss:.4g} -> {figures.last_loss:.4g}"))
        if figures.eval_loss is not None:
            found.append(("test loss", f"{figures.eval_loss:.4g}"))
        if figures.seconds is not None:
            rate = figures.tokens_per_second
            speed = f", {count(rate)} tokens/s" if rate else ""
            found.append(("time", f"{clock(figures.seconds)}{speed}"))
    return [*found, ("model", str(outcome.folder))]


def _resumed(outcome: Outcome) -> str:
    if outcome.resumed_from is None:
        return ""
    if outcome.resumed_from >= outcome.steps:
        return " (all of them were done)"
    return f" (went on after {outcome.resumed_from:,})"


def _card(folder: Path, repo_id: str) -> str:
    """The card, under the model's name on the Hub; a README.md of the user's own is kept."""
    from ludus.train.card import CARD, card_of
    from ludus.train.record import read

    own, record = folder / CARD, read(folder)
    written = own.read_text(encoding="utf-8-sig") if own.is_file() else ""
    if record is None or (written and written != card_of(record, name=str(folder))):
        return written
    return card_of(record, name=repo_id)
