"""The summary after a training: results, advice, and the command to run next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli.command_line import is_stage
from ludus.cli.display.console import escape_control_chars
from ludus.cli.display.formatting import format_change, format_clock, format_count
from ludus.cli.flags import name_flags

if TYPE_CHECKING:
    from ludus.data.tool_schema import JsonObject
    from ludus.diagnose import Diagnosis
    from ludus.train import TrainResult
    from ludus.tutoring import TutorResult

_MIN_NAME_WIDTH = 10
_ROUND_HEADER = f"{'success':>8}{'reward':>9}{'agreement':>11}{'rows':>10}"


def diagnose_training(folder: Path) -> Diagnosis | None:
    """The diagnosis of a GRPO run; None for another training, and without a log."""
    from ludus.diagnose import read_run
    from ludus.errors import RunError
    from ludus.train.output.record import read_record

    record = read_record(folder)
    try:
        return read_run(folder).diagnose() if record and record.kind == "grpo" else None
    except RunError:
        return None


def training_summary_fields(result: TrainResult) -> JsonObject:
    """Return the fields that --json prints."""
    from ludus.data.json_files import to_jsonable
    from ludus.train.output.record import read_record
    from ludus.tutoring import TutorResult

    record = read_record(result.folder)
    metrics = record.metrics if record is not None else None
    fields: JsonObject = {"folder": str(result.folder)}
    fields |= metrics.model_dump() if metrics is not None else {}
    if record is not None and record.comparison is not None:
        fields["comparison"] = record.comparison.model_dump()
    fields |= {"steps": result.steps, "stopped": result.stopped}
    if isinstance(result, TutorResult):
        fields["rounds"] = [each.as_json() for each in result.rounds]
        fields["kept_round"] = result.kept_round
    if result.stopped is None and (diagnosis := diagnose_training(result.folder)) is not None:
        fields["verdicts"] = to_jsonable(diagnosis.verdicts)
    return fields


def print_training_summary(
    result: TrainResult, model: str, environment: Sequence[str] | None = None
) -> None:
    """Print the summary of a training of `model`; `environment` are words of `ludus eval`."""
    from ludus.tutoring import TutorResult

    lines = round_lines(result) if isinstance(result, TutorResult) else result_lines(result)
    lines.append(("model", str(result.folder)))
    width = max(_MIN_NAME_WIDTH, *(len(name) + 2 for name, _ in lines))
    for name, value in lines:
        print(escape_control_chars(f"{name:<{width}}{value}"))
    if not is_stage():  # A recipe has its own next stage.
        for line in advice(result.folder, model, environment):
            print(escape_control_chars(line))


def result_lines(result: TrainResult) -> list[tuple[str, str]]:
    """Return the summary of SFT, DPO or GRPO: steps, loss or reward, and time."""
    from ludus.diagnose.reward_change import format_change_with_interval
    from ludus.train.output.record import read_record

    record = read_record(result.folder)
    is_grpo = record is not None and record.kind == "grpo"
    steps = f"{result.steps:,}"
    if result.resumed_from is not None:
        all_done = result.resumed_from >= result.steps
        resumed = "all done before" if all_done else f"resumed after {result.resumed_from:,}"
        steps += f" ({resumed})"
    planned = record.settings.get("steps") if is_grpo and record is not None else None
    if planned is not None and result.steps < planned:
        steps += f" of {planned:,}: stopped early"
    if record is not None and record.metrics is not None and record.metrics.stopped:
        steps += f" ({record.metrics.stopped}; the same command goes on)"
    lines = [("steps", steps)]
    if record is not None and record.comparison is not None:
        lines.append(("held out", str(record.comparison)))
    if record is None or (metrics := record.metrics) is None:
        return lines
    diagnosis = diagnose_training(result.folder)
    if is_grpo and (diagnosis is None or diagnosis.reward is None):
        lines.append(("reward", "no episode was scored"))
    elif diagnosis is not None and diagnosis.reward is not None:
        lines.append(("reward change", format_change_with_interval(diagnosis.reward)))
        lines += [(part.name, format_change_with_interval(part)) for part in diagnosis.parts]
    else:
        if (loss := format_change(metrics.first_loss, metrics.last_loss)) is not None:
            lines.append(("loss", loss))
        if metrics.eval_loss is not None:
            lines.append(("test loss", f"{metrics.eval_loss:.4g}"))
    if metrics.seconds is not None:
        rate = metrics.tokens_per_second
        speed = f", {format_count(rate)} tokens/s" if rate else ""
        lines.append(("time", f"{format_clock(metrics.seconds)}{speed}"))
    return lines


def round_lines(result: TutorResult) -> list[tuple[str, str]]:
    """Return the summary of training with a tutor: a line per round."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    lines = [("round", _ROUND_HEADER)]
    for each in result.rounds:
        reward = "-" if each.reward is None else f"{each.reward:.3f}"
        row = f"{share(each.success):>8}{reward:>9}{share(each.agreement):>11}{each.rows:>10,}"
        kept = "  kept" if each.number == result.kept_round else ""
        lines.append((str(each.number), f"{row}{kept}"))
    return [*lines, ("time", format_clock(result.seconds))]


def advice(folder: Path, model: str, environment: Sequence[str] | None) -> list[str]:
    """Return verdicts on a GRPO run, how to extend it, and the command to evaluate the model."""
    from ludus.diagnose.diagnosis import format_verdict
    from ludus.train.output.checkpoints import latest_checkpoint
    from ludus.train.output.model_card import UNKNOWN_ENVIRONMENT, environment_arguments
    from ludus.train.output.record import read_record

    record, diagnosis = read_record(folder), diagnose_training(folder)
    lines = [name_flags(format_verdict(each)) for each in (diagnosis.verdicts if diagnosis else ())]
    is_grpo = record is not None and record.kind == "grpo"
    if is_grpo and (checkpoint := latest_checkpoint(folder)) is not None:
        lines.append(f"More: the same command with more --steps resumes from {checkpoint}.")
    recorded = environment_arguments(record) if record is not None else (UNKNOWN_ENVIRONMENT,)
    kwargs = record.chat_format.chat_template_kwargs if record is not None else {}
    command = ["ludus", "eval", *(environment or recorded)]
    command += ["-c", f"hf:{model}", "-c", f"hf:{folder}", "-n", "100"]
    # Both models need the chat template arguments of the training.
    command += ["--chat-template-kwargs", json.dumps(kwargs)] if kwargs else []
    return [*lines, f"Next: {shlex.join(command)}"]
