"""Curves over levels of difficulty."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.small_evaluations import attempt
from ludus.cli.display.eval_table import print_results
from ludus.data.tool_schema import JsonObject
from ludus.evaluation.metrics import Attempt, build_metrics
from ludus.evaluation.results import CandidateAttempts, Evaluation, score_candidates
from ludus.evaluation.slices import build_level_curves, build_slices


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


def curves_of(*candidates: Sequence[Attempt]) -> list[JsonObject]:
    evaluation = evaluation_of(*candidates)
    return build_level_curves(evaluation.slices, evaluation.verdict_metrics)


def at_levels(name: str, solved: Sequence[int], start: int = 0, **more: Any) -> list[Attempt]:
    """Two attempts at each of the levels 2, 3, …, of which 0 to 2 are solved."""
    return [
        attempt(start + 2 * at + each, float(each < count), arguments={name: at + 2}, **more)
        for at, count in enumerate(solved)
        for each in range(2)
    ]


def values_of(curves: JsonObject) -> list[list[float | None]]:
    return [
        [None if each is None else each["value"] for each in one] for one in curves["candidates"]
    ]


def test_each_environment_has_curves_of_its_own() -> None:
    first = at_levels("digits", [2, 1, 0], environment="sums")
    first += at_levels("rows", [1, 1], 6, environment="catch")
    second = at_levels("digits", [2, 2, 2], environment="sums")
    catch, sums = curves_of(first, second)
    assert (catch["x_title"], catch["labels"]) == ("rows", ["2", "3"])
    assert values_of(catch) == [[0.5, 0.5], [None, None]]
    assert (sums["x_title"], sums["labels"]) == ("digits", ["2", "3", "4"])
    assert values_of(sums) == [[1.0, 0.5, 0.0], [1.0, 1.0, 1.0]]
    assert "sums" in sums["title"]


def test_a_candidate_without_results_can_be_printed(capsys: Any) -> None:
    played = at_levels("digits", [2, 1], environment="sums")
    broken = at_levels("digits", [0, 0], environment="sums", broken=True)
    evaluation = evaluation_of(played, broken)
    print_results(evaluation)
    printed = capsys.readouterr().out
    assert "digits=2" in printed and "digits=3" in printed


def test_levels_of_several_arguments_name_them() -> None:
    attempts = [
        attempt(at, 1.0, arguments={"digits": 2 + at % 2, "terms": 5 + at // 2}) for at in range(4)
    ]
    curves, *_ = curves_of(attempts)
    assert curves["x_title"] == "" and curves["labels"][0] == "digits=2 terms=5"
