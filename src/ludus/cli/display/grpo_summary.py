"""What is told at the end of GRPO: how the reward changed, and what the diagnosis finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ludus.cli.display.sft_summary import TrainSummary, read_record

if TYPE_CHECKING:
    from ludus.diagnose import Diagnosis
    from ludus.train import TrainResult
    from ludus.train.output.record_schema import FinalMetrics


class GRPOSummary(TrainSummary):
    """Speaks of rewards instead of losses."""

    _cached_diagnosis: Diagnosis | None = None

    def as_json(self, outcome: TrainResult) -> dict[str, Any]:
        from ludus.data.jsonable import to_jsonable

        found = self._read_diagnosis(outcome) if outcome.stopped is None else None
        verdicts = {"verdicts": to_jsonable(found.verdicts)} if found is not None else {}
        return {**super().as_json(outcome), **verdicts}

    def steps_text(self, outcome: TrainResult) -> str:
        """With --early-stop there may be fewer than were asked for."""
        record = read_record(outcome)
        planned = record.settings.get("steps", 0) if record is not None else 0
        early = f", and not {planned:,}: it ended early" if outcome.steps < planned else ""
        return f"{super().steps_text(outcome)}{early}"

    def metric_lines(self, outcome: TrainResult, figures: FinalMetrics) -> list[tuple[str, str]]:
        from ludus.diagnose.number_format import format_change_with_interval, format_reward

        found = self._read_diagnosis(outcome)
        if found is None or found.reward is None:
            return [("reward", "no episode was scored")]
        lines = [
            (change.name, format_change_with_interval(change))
            for change in (found.reward, *found.parts)
        ]
        if found.held_out:
            scale, ends = found.reward.scale, found.held_out[:1] + found.held_out[1:][-1:]
            told = (f"{format_reward(value, scale)} (step {step:,})" for step, value in ends)
            lines.append(("held out", " -> ".join(told)))
        return lines

    def next_steps(self, outcome: TrainResult) -> list[str]:
        from ludus.diagnose.text import format_verdict

        found = self._read_diagnosis(outcome)
        verdicts = found.verdicts if found is not None else ()
        return [
            *map(format_verdict, verdicts),
            *_extend_advice(outcome),
            *super().next_steps(outcome),
        ]

    def _read_diagnosis(self, outcome: TrainResult) -> Diagnosis | None:
        """Made once; None where there is nothing to judge."""
        from ludus.diagnose import read_run
        from ludus.errors import RunError

        if self._cached_diagnosis is None:
            try:
                self._cached_diagnosis = read_run(outcome.folder).diagnose()
            except RunError:
                return None
        return self._cached_diagnosis


def _extend_advice(outcome: TrainResult) -> list[str]:
    """How to go on with a finished run, and what is kept on the disk for it."""
    from ludus.train.output.checkpoints import latest_checkpoint

    checkpoint = latest_checkpoint(outcome.folder)
    if checkpoint is None:
        return []
    size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
    return [
        f"More: the same command with more --steps goes on from {checkpoint}, which holds the "
        f"optimizer's state ({size / 1e6:,.0f} MB)."
    ]
