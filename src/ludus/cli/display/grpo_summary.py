"""The summary after a GRPO training: how the reward changed, and the diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ludus.cli.display.train_summary import TrainSummary
from ludus.cli.program import name_flags

if TYPE_CHECKING:
    from ludus.diagnose import Diagnosis
    from ludus.train import TrainResult
    from ludus.train.output.record_schema import FinalMetrics


class GRPOSummary(TrainSummary):
    """Reports rewards instead of losses."""

    _cached_diagnosis: Diagnosis | None = None

    def as_json(self, result: TrainResult) -> dict[str, Any]:
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
