"""Tables over levels of difficulty."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.small_evaluations import attempt
from ludus.cli.display.eval_table import print_results
from ludus.evaluation.metrics import Attempt, build_metrics
from ludus.evaluation.results import CandidateAttempts, Evaluation, score_candidates
from ludus.evaluation.slices import build_slices


def evaluation_of(*candidates: Sequence[Attempt]) -> Evaluation:
    metrics = build_metrics(1.0)
    named = [CandidateAttempts(f"c{at}", {}, each) for at, each in enumerate(candidates)]
    return Evaluation(
        folder=Path("eval"),
        settings={},
        metrics=metrics,
        scores=score_candidates(named, metrics, len(candidates[0])),
        solved_at=1.0,
        exclude_tasks_in=None,
        stopped=None,
        versions={},
        slices=build_slices(candidates, metrics),
    )


def at_levels(name: str, solved: Sequence[int], **more: Any) -> list[Attempt]:
    """Two attempts at each of the levels 2, 3, …, of which 0 to 2 are solved."""
    return [
        attempt(2 * at + each, float(each < count), arguments={name: at + 2}, **more)
        for at, count in enumerate(solved)
        for each in range(2)
    ]


def test_a_candidate_without_results_can_be_printed(capsys: Any) -> None:
    played = at_levels("digits", [2, 1], environment="sums")
    broken = at_levels("digits", [0, 0], environment="sums", broken=True)
    evaluation = evaluation_of(played, broken)
    print_results(evaluation)
    printed = capsys.readouterr().out
    assert "digits=2" in printed and "digits=3" in printed
