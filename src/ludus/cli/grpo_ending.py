"""What is told at the end of GRPO: how the reward changed, and what the diagnosis finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ludus.cli.ending import Ending, record_of

if TYPE_CHECKING:
    from ludus.train import TrainResult
    from ludus.train.diagnosis import Diagnosis
    from ludus.train.training import FinalMetrics


class GrpoEnding(Ending):
    """Speaks of rewards instead of losses."""

    _found: Diagnosis | None = None

    def facts(self, outcome: TrainResult) -> dict[str, Any]:
        from ludus.train.facts import to_jsonable

        found = self._diagnosis(outcome) if outcome.stopped is None else None
        verdicts = {"verdicts": to_jsonable(found.verdicts)} if found is not None else {}
        return {**super().facts(outcome), **verdicts}

    def steps(self, outcome: TrainResult) -> str:
        """With --early-stop there may be fewer than were asked for."""
        record = record_of(outcome)
        planned = record.settings.get("steps", 0) if record is not None else 0
        early = f", and not {planned:,}: it ended early" if outcome.steps < planned else ""
        return f"{super().steps(outcome)}{early}"

    def learned(self, outcome: TrainResult, figures: FinalMetrics) -> list[tuple[str, str]]:
        from ludus.train.diagnosis.figures import format_change_with_interval, format_reward

        found = self._diagnosis(outcome)
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

    def advice(self, outcome: TrainResult) -> list[str]:
        from ludus.train.diagnosis.words import format_verdict

        found = self._diagnosis(outcome)
        verdicts = found.verdicts if found is not None else ()
        return [*map(format_verdict, verdicts), *_extending(outcome), *super().advice(outcome)]

    def _diagnosis(self, outcome: TrainResult) -> Diagnosis | None:
        """Made once; None where there is nothing to judge."""
        from ludus.errors import RunError
        from ludus.train.diagnosis import read_run

        if self._found is None:
            try:
                self._found = read_run(outcome.folder).diagnose()
            except RunError:
                return None
        return self._found


def _extending(outcome: TrainResult) -> list[str]:
    """How to go on with a finished run, and what is kept on the disk for it."""
    from ludus.train.checkpoints import latest_checkpoint

    checkpoint = latest_checkpoint(outcome.folder)
    if checkpoint is None:
        return []
    size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
    return [
        f"More: the same command with more --steps goes on from {checkpoint}, which holds the "
        f"optimizer's state ({size / 1e6:,.0f} MB)."
    ]
