"""The summary after a training: results, advice, and the command to run next."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from ludus.cli.display.formatting import format_change, format_clock, format_count
from ludus.cli.program import name_flags

if TYPE_CHECKING:
    from ludus.data.tool_schema import JsonObject
    from ludus.diagnose import Diagnosis
    from ludus.train import TrainResult
    from ludus.train.output.record import FinalMetrics, TrainingRecord


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

    def as_json(self, result: TrainResult) -> JsonObject:
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
        from ludus.train.output.model_card import UNKNOWN_ENVIRONMENT, environment_arguments

        record = self.read_record(result)
        recorded = environment_arguments(record) if record is not None else (UNKNOWN_ENVIRONMENT,)
        kwargs = record.chat_format.chat_template_kwargs if record is not None else {}
        command = ["ludus", "eval", *(self.environment or recorded)]
        command += ["-c", f"hf:{self.model}", "-c", f"hf:{result.folder}", "-n", "100"]
        # Both models need the chat template arguments of the training.
        command += ["--chat-template-kwargs", json.dumps(kwargs)] if kwargs else []
        return [f"Next: {shlex.join(command)}"]

    def read_record(self, result: TrainResult) -> TrainingRecord | None:
        from ludus.train.output.record import read_record

        return read_record(result.folder)


class GRPOSummary(TrainSummary):
    """Reports rewards instead of losses."""

    _cached_diagnosis: Diagnosis | None = None

    def as_json(self, result: TrainResult) -> JsonObject:
        from ludus.data.json_files import to_jsonable

        fields = super().as_json(result)
        if result.stopped is None and (diagnosis := self._read_diagnosis(result)) is not None:
            fields["verdicts"] = to_jsonable(diagnosis.verdicts)
        return fields

    def steps_text(self, result: TrainResult) -> str:
        """The number of steps, and how many were planned where --early-stop ended the run."""
        record = self.read_record(result)
        planned = record.settings.get("steps", 0) if record is not None else 0
        early = f" of {planned:,}: stopped early" if result.steps < planned else ""
        return f"{super().steps_text(result)}{early}"

    def metric_lines(self, result: TrainResult, metrics: FinalMetrics) -> list[tuple[str, str]]:
        from ludus.diagnose.reward_delta import format_change_with_interval, format_reward

        diagnosis = self._read_diagnosis(result)
        if diagnosis is None or diagnosis.reward is None:
            return [("reward", "no episode was scored")]
        lines = [("reward change", format_change_with_interval(diagnosis.reward))]
        lines += [(part.name, format_change_with_interval(part)) for part in diagnosis.parts]
        if diagnosis.held_out:
            scale = diagnosis.reward.scale
            ends = diagnosis.held_out[:1] + diagnosis.held_out[1:][-1:]
            texts = (f"{format_reward(value, scale)} (step {step:,})" for step, value in ends)
            lines.append(("held out", " -> ".join(texts)))
        return lines

    def next_steps(self, result: TrainResult) -> list[str]:
        """Advice: the diagnosis, how to extend the run, and how to evaluate the model."""
        from ludus.diagnose.diagnosis import format_verdict
        from ludus.train.output.checkpoints import latest_checkpoint

        diagnosis = self._read_diagnosis(result)
        advice = [
            name_flags(format_verdict(one)) for one in (diagnosis.verdicts if diagnosis else ())
        ]
        if (checkpoint := latest_checkpoint(result.folder)) is not None:
            size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
            advice.append(
                f"More: the same command with more --steps resumes from {checkpoint}, which holds "
                f"the optimizer state ({size / 1e6:,.0f} MB)."
            )
        return [*advice, *super().next_steps(result)]

    def _read_diagnosis(self, result: TrainResult) -> Diagnosis | None:
        """Diagnose the run, once; None where the folder holds no log."""
        from ludus.diagnose import read_run
        from ludus.errors import RunError

        if self._cached_diagnosis is None:
            try:
                self._cached_diagnosis = read_run(result.folder).diagnose()
            except RunError:
                return None
        return self._cached_diagnosis


_ROUND_HEADER = f"{'success':>8}{'reward':>9}{'agreement':>11}{'rows':>10}"


class TutorSummary(TrainSummary):
    """Texts about finished rounds."""

    without_checkpoint = "continues the round"

    def as_json(self, result: TrainResult) -> JsonObject:
        from ludus.tutoring import TutorResult

        assert isinstance(result, TutorResult)
        rounds = [each.as_json() for each in result.rounds]
        return {**super().as_json(result), "rounds": rounds, "kept_round": result.kept_round}

    def stopped_text(self, result: TrainResult) -> str:
        from ludus.tutoring import TutorResult

        assert isinstance(result, TutorResult)
        return f"Stopped in round {len(result.rounds) + 1}"

    def lines(self, result: TrainResult) -> list[tuple[str, str]]:
        from ludus.tutoring import TutorResult

        assert isinstance(result, TutorResult)
        lines = [("round", _ROUND_HEADER)]
        for each in result.rounds:
            row = (
                f"{_share(each.success):>8}{_number(each.reward):>9}{_share(each.agreement):>11}"
                f"{each.rows:>10,}"
            )
            kept = "  kept" if each.number == result.kept_round else ""
            lines.append((str(each.number), f"{row}{kept}"))
        return [*lines, ("time", format_clock(result.seconds)), ("model", str(result.folder))]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
