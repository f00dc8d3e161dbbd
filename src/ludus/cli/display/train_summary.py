"""The summary after a training: results, and the command to run next."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from ludus.cli.display.formatting import format_change, format_clock, format_count

if TYPE_CHECKING:
    from ludus.train import TrainResult
    from ludus.train.output.record_schema import FinalMetrics, TrainingRecord


class TrainSummary:
    """Texts about a finished training.

    Args:
        model: the model that was trained, as it was given.
        environment: arguments of `ludus eval` that name the environment; None: the environment
            that the rows come from.
    """

    without_checkpoint = "starts anew"
    """What the same command does after a run was killed before its first checkpoint."""

    def __init__(self, model: str, environment: tuple[str, ...] | None = None) -> None:
        self.model = model
        self.environment = environment

    def as_json(self, result: TrainResult) -> dict[str, Any]:
        record = self.read_record(result)
        return record.metrics.model_dump() if record is not None and record.metrics else {}

    def lines(self, result: TrainResult) -> list[tuple[str, str]]:
        """Names and texts of the lines to print."""
        record = self.read_record(result)
        metrics = record.metrics if record is not None else None
        lines = [("steps", self.steps_text(result))]
        if metrics is not None:
            lines += self.metric_lines(result, metrics)
            if metrics.seconds is not None:
                rate = metrics.tokens_per_second
                speed = f", {format_count(rate)} tokens/s" if rate else ""
                lines.append(("time", f"{format_clock(metrics.seconds)}{speed}"))
        return [*lines, ("model", str(result.folder))]

    def stopped_text(self, result: TrainResult) -> str:
        return f"Stopped at step {result.steps:,}"

    def steps_text(self, result: TrainResult) -> str:
        steps = f"{result.steps:,}"
        if result.resumed_from is None:
            return steps
        if result.resumed_from >= result.steps:
            return f"{steps} (all done before)"
        return f"{steps} (resumed after {result.resumed_from:,})"

    def metric_lines(self, result: TrainResult, metrics: FinalMetrics) -> list[tuple[str, str]]:
        lines = []
        if (loss := format_change(metrics.first_loss, metrics.last_loss)) is not None:
            lines.append(("loss", loss))
        if metrics.eval_loss is not None:
            lines.append(("test loss", f"{metrics.eval_loss:.4g}"))
        return lines

    def next_steps(self, result: TrainResult) -> list[str]:
        """Advice: the command that compares the trained model with its base."""
        from ludus.train.output.next_steps import UNKNOWN_ENVIRONMENT, environment_arguments

        record = self.read_record(result)
        recorded = environment_arguments(record) if record is not None else (UNKNOWN_ENVIRONMENT,)
        kwargs = record.dialect.chat_template_kwargs if record is not None else {}
        command = ["ludus", "eval", *(self.environment or recorded)]
        command += ["-c", f"hf:{self.model}", "-c", f"hf:{result.folder}", "-n", "100"]
        # Both models need the chat template arguments of the training.
        command += ["--chat-template-kwargs", json.dumps(kwargs)] if kwargs else []
        return [f"Next: {shlex.join(command)}"]

    def read_record(self, result: TrainResult) -> TrainingRecord | None:
        from ludus.train.output.record import read_record

        return read_record(result.folder)
