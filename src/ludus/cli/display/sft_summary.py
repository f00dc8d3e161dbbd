"""What is told at the end of a training: what came of it, and what to do next.

Of training on rows; `ludus.cli.display.grpo_summary` tells of trial and reward. Words only: who prints them
is `ludus.cli.train_command`.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from ludus.cli.display.formatting import format_clock, format_count

if TYPE_CHECKING:
    from ludus.train import TrainResult
    from ludus.train.output.record_schema import FinalMetrics, TrainingRecord


class TrainSummary:
    """`model` is what was trained, and `environment` the words after `ludus eval`; None: what the
    rows were made in."""

    def __init__(self, model: str, environment: tuple[str, ...] | None = None) -> None:
        self.model = model
        self.environment = environment

    def as_json(self, outcome: TrainResult) -> dict[str, Any]:
        """For machines."""
        figures = _read_figures(outcome)
        return figures.model_dump() if figures is not None else {}

    def lines(self, outcome: TrainResult) -> list[tuple[str, str]]:
        """Names and what is said of them."""
        figures = _read_figures(outcome)
        middle = (
            [] if figures is None else [*self.metric_lines(outcome, figures), *_time_line(figures)]
        )
        return [("steps", self.steps_text(outcome)), *middle, ("model", str(outcome.folder))]

    def steps_text(self, outcome: TrainResult) -> str:
        return f"{outcome.steps:,}{_resume_note(outcome)}"

    def metric_lines(self, outcome: TrainResult, figures: FinalMetrics) -> list[tuple[str, str]]:
        """How it stands with what was to be learned."""
        found = []
        if figures.first_loss is not None and figures.last_loss is not None:
            found.append(("loss", f"{figures.first_loss:.4g} -> {figures.last_loss:.4g}"))
        if figures.eval_loss is not None:
            found.append(("test loss", f"{figures.eval_loss:.4g}"))
        return found

    def next_steps(self, outcome: TrainResult) -> list[str]:
        """What to do next."""
        record = read_record(outcome)
        kwargs = record.dialect.chat_template_kwargs if record is not None else {}
        # The base has to be asked as the trained model is.
        asked = ("--chat-template-kwargs", json.dumps(kwargs)) if kwargs else ()
        tried = ("-c", f"hf:{self.model}", "-c", f"hf:{outcome.folder}", "-n", "100", *asked)
        return [f"Next: ludus eval {shlex.join((*self._environment_args(record), *tried))}"]

    def _environment_args(self, record: TrainingRecord | None) -> tuple[str, ...]:
        from ludus.train.output.next_steps import UNKNOWN_ENVIRONMENT, environment_arguments

        found = environment_arguments(record) if record is not None else (UNKNOWN_ENVIRONMENT,)
        return self.environment or found


def read_record(outcome: TrainResult) -> TrainingRecord | None:
    from ludus.train.output.record import read_record

    return read_record(outcome.folder)


def _read_figures(outcome: TrainResult) -> FinalMetrics | None:
    record = read_record(outcome)
    return record.figures if record is not None else None


def _time_line(figures: FinalMetrics) -> list[tuple[str, str]]:
    if figures.seconds is None:
        return []
    rate = figures.tokens_per_second
    speed = f", {format_count(rate)} tokens/s" if rate else ""
    return [("time", f"{format_clock(figures.seconds)}{speed}")]


def _resume_note(outcome: TrainResult) -> str:
    if outcome.resumed_from is None:
        return ""
    if outcome.resumed_from >= outcome.steps:
        return " (all of them were done)"
    return f" (went on after {outcome.resumed_from:,})"
