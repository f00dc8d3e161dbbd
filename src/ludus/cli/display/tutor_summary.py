"""The summary after the rounds of a tutor: a line for each round, and the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ludus.cli.display.formatting import format_clock
from ludus.cli.display.train_summary import TrainSummary

if TYPE_CHECKING:
    from ludus.train import TrainResult

_HEADER = f"{'success':>8}{'reward':>9}{'agreement':>11}{'rows':>10}"


class TutorSummary(TrainSummary):
    """Texts about finished rounds."""

    without_checkpoint = "continues the round"

    def as_json(self, result: TrainResult) -> dict[str, Any]:
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
        lines = [("round", _HEADER)]
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
