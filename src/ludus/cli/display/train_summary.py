"""The summary after a training: results, advice, and the command to run next."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli.display.formatting import format_change, format_clock, format_count
from ludus.cli.program import name_flags

if TYPE_CHECKING:
    from ludus.data.tool_schema import JsonObject
    from ludus.diagnose import Diagnosis
    from ludus.train import TrainResult
    from ludus.train.output.record import FinalMetrics
    from ludus.tutoring import TutorResult

_ROUND_HEADER = f"{'success':>8}{'reward':>9}{'agreement':>11}{'rows':>10}"


@dataclass(frozen=True, slots=True)
class TrainSummary:
    """What is printed of a finished training."""

    lines: list[tuple[str, str]]
    """Names and texts."""
    fields: JsonObject
    """What --json prints instead."""
    advice: list[str]


def summarize_training(
    result: TrainResult, model: str, environment: tuple[str, ...] | None = None
) -> TrainSummary:
    """Summarize a training of a model.

    Args:
        result: what the stage has returned.
        model: the model that was trained, as it was given.
        environment: arguments of `ludus eval` that name the environment; None: the environment
            that the rows come from.
    """
    from ludus.train.output.model_card import UNKNOWN_ENVIRONMENT, environment_arguments
    from ludus.train.output.record import read_record
    from ludus.tutoring import TutorResult

    record, advice = read_record(result.folder), list[str]()
    metrics = record.metrics if record is not None else None
    fields: JsonObject = metrics.model_dump() if metrics is not None else {}
    is_grpo = record is not None and record.kind == "grpo"
    diagnosis = _diagnose(result.folder) if is_grpo else None
    if isinstance(result, TutorResult):
        lines = _round_lines(result)
        fields["rounds"] = [each.as_json() for each in result.rounds]
        fields["kept_round"] = result.kept_round
    else:
        planned = record.settings.get("steps") if is_grpo and record is not None else None
        lines = [("steps", _steps_text(result, planned))]
        if metrics is not None:
            lines += _reward_lines(diagnosis) if is_grpo else _loss_lines(metrics)
            if metrics.seconds is not None:
                rate = metrics.tokens_per_second
                speed = f", {format_count(rate)} tokens/s" if rate else ""
                lines.append(("time", f"{format_clock(metrics.seconds)}{speed}"))
    lines.append(("model", str(result.folder)))
    if is_grpo:
        advice = _grpo_advice(result.folder, diagnosis)
    if result.stopped is None and diagnosis is not None:
        from ludus.data.json_files import to_jsonable

        fields["verdicts"] = to_jsonable(diagnosis.verdicts)
    recorded = environment_arguments(record) if record is not None else (UNKNOWN_ENVIRONMENT,)
    kwargs = record.chat_format.chat_template_kwargs if record is not None else {}
    command = ["ludus", "eval", *(environment or recorded)]
    command += ["-c", f"hf:{model}", "-c", f"hf:{result.folder}", "-n", "100"]
    # Both models need the chat template arguments of the training.
    command += ["--chat-template-kwargs", json.dumps(kwargs)] if kwargs else []
    return TrainSummary(lines, fields, [*advice, f"Next: {shlex.join(command)}"])


def _steps_text(result: TrainResult, planned: int | None) -> str:
    """The number of steps, and how many were planned where --early-stop ended the run."""
    steps = f"{result.steps:,}"
    if result.resumed_from is not None:
        all_done = result.resumed_from >= result.steps
        resumed = "all done before" if all_done else f"resumed after {result.resumed_from:,}"
        steps += f" ({resumed})"
    if planned is not None and result.steps < planned:
        steps += f" of {planned:,}: stopped early"
    return steps


def _loss_lines(metrics: FinalMetrics) -> list[tuple[str, str]]:
    lines = []
    if (loss := format_change(metrics.first_loss, metrics.last_loss)) is not None:
        lines.append(("loss", loss))
    if metrics.eval_loss is not None:
        lines.append(("test loss", f"{metrics.eval_loss:.4g}"))
    return lines


def _diagnose(folder: Path) -> Diagnosis | None:
    from ludus.diagnose import read_run
    from ludus.errors import RunError

    try:
        return read_run(folder).diagnose()
    except RunError:  # The folder holds no log.
        return None


def _reward_lines(diagnosis: Diagnosis | None) -> list[tuple[str, str]]:
    from ludus.diagnose.reward_delta import format_change_with_interval, format_reward

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


def _grpo_advice(folder: Path, diagnosis: Diagnosis | None) -> list[str]:
    """The verdicts, and how to extend the run."""
    from ludus.diagnose.diagnosis import format_verdict
    from ludus.train.output.checkpoints import latest_checkpoint

    verdicts = diagnosis.verdicts if diagnosis is not None else ()
    advice = [name_flags(format_verdict(verdict)) for verdict in verdicts]
    if (checkpoint := latest_checkpoint(folder)) is not None:
        advice.append(f"More: the same command with more --steps resumes from {checkpoint}.")
    return advice


def _round_lines(result: TutorResult) -> list[tuple[str, str]]:
    """A line for each round of a tutor."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    lines = [("round", _ROUND_HEADER)]
    for each in result.rounds:
        reward = "-" if each.reward is None else f"{each.reward:.3f}"
        row = f"{share(each.success):>8}{reward:>9}{share(each.agreement):>11}{each.rows:>10,}"
        kept = "  kept" if each.number == result.kept_round else ""
        lines.append((str(each.number), f"{row}{kept}"))
    return [*lines, ("time", format_clock(result.seconds))]
