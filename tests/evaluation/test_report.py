"""Tables, notes and report of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluation.small_evaluations import attempt
from ludus.evaluation.metrics import Attempt, build_metrics
from ludus.evaluation.results import CandidateAttempts, Evaluation, score_candidates
from ludus.evaluation.table import (
    build_notes,
    build_table,
    describe_method,
    render_report,
)


def attempts_solving(share: int, of: int = 50) -> list[Attempt]:
    return [attempt(place, float(place < share)) for place in range(of)]


def evaluation(planned: int = 50, **played: Sequence[Attempt]) -> Evaluation:
    metrics = build_metrics(1.0)
    settings: dict[str, Any] = {"environment": "catch", "episodes": planned, "seed": 999}
    who = [
        CandidateAttempts(label, {"provider": "random"}, attempts)
        for label, attempts in played.items()
    ]
    return Evaluation(
        folder=Path("evals/catch"),
        settings={**settings, "group_size": 1},
        metrics=metrics,
        scores=score_candidates(who, metrics, planned),
        solved_at=1.0,
        exclude_tasks_in=None,
        stopped=None,
        versions={"ludus": "1"},
        command="ludus eval catch -c base=random",
    )


def rows_of(evaluation: Evaluation) -> dict[str, dict[str, list[str]]]:
    """Value, delta and n, by metric and candidate."""
    rows: dict[str, dict[str, list[str]]] = {}
    for name, candidate, *cells in build_table(evaluation).rows:
        metric = name or next(reversed(rows))
        rows.setdefault(metric, {})[candidate] = cells
    return rows


def test_each_candidate_has_a_row_for_each_metric() -> None:
    results = evaluation(
        base=attempts_solving(5), sft=attempts_solving(40), best=attempts_solving(50)
    )
    assert build_table(results).header == ["Metric", "Candidate", "Value", "Delta", "n"]
    rows = rows_of(results)
    assert rows["Accuracy"] == {
        "base": ["10.0% (4.3 to 21.4)", "", "50"],
        "sft": ["80.0% (67.0 to 88.8)", "+70.0 pp (+53.4 to +80.0)", "50"],
        "best": ["100.0% (92.9 to 100.0)", "+90.0 pp (+76.6 to +95.7)", "50"],
    }
    assert rows["Mean reward"]["sft"][1].startswith("+0.700 (")
    assert "Tokens in a reply" not in rows, "nobody counted any"


def test_notes_list_excluded_episodes() -> None:
    broken = [attempt(48, None, broken=True), attempt(49, None)]
    results = evaluation(base=attempts_solving(5, of=48) + broken, sft=attempts_solving(40, of=49))
    expected = ["base: 1 episode broken", "base: 1 episode unscored", "sft: 1 episode still"]
    for note, start in zip(build_notes(results), expected, strict=True):
        assert note.startswith(start)
    assert "interrupted" in build_notes(replace(results, stopped="interrupted"))[-1]


def test_cut_off_row_and_note_only_if_not_zero() -> None:
    whole = evaluation(base=attempts_solving(5))
    assert "Cut off" not in rows_of(whole)
    cut = [attempt(place, 0.0, format_compliant=None, cut_off=True) for place in range(50)]
    results = evaluation(base=attempts_solving(5), small=cut)
    results = replace(results, settings={**results.settings, "max_tokens": 16})
    rows = rows_of(results)
    assert rows["Format compliance"]["small"] == ["-", "-", "-"]
    assert rows["Cut off"]["small"][0].startswith("100.0% (")
    (note,) = build_notes(results)
    assert note.startswith("small: 50 episodes ") and "`max_tokens` 16" in note


def test_missing_interval_is_explained() -> None:
    results = evaluation(4, base=[attempt(place, 0.5) for place in range(4)])
    rows = rows_of(results)
    assert rows["Mean reward"]["base"][0] == "0.500 (no interval)"
    assert rows["Accuracy"]["base"][0] == "0.0% (0.0 to 49.0)"
    assert "fewer than 5 tasks" in describe_method(results)
    assert "fewer than" not in describe_method(evaluation(base=attempts_solving(5)))


def test_candidate_without_values_has_empty_cells() -> None:
    nothing = [attempt(0, None, broken=True)]
    results = evaluation(1, base=attempts_solving(1, of=1), other=nothing)
    assert rows_of(results)["Accuracy"]["other"] == ["-", "-", "-"]


def test_format_compliance_is_shown_where_every_reply_was_cut_off() -> None:
    cut = [attempt(place, 0.0, format_compliant=None, cut_off=True) for place in range(6)]
    rows = rows_of(evaluation(6, base=cut))
    assert rows["Format compliance"]["base"][0] == "-"
    assert rows["Cut off"]["base"][0].startswith("100.0%")


def test_report_has_table_settings_and_command() -> None:
    text = render_report(evaluation(base=attempts_solving(5), sft=attempts_solving(40)))
    assert "| Accuracy | base | 10.0% (4.3 to 21.4) |" in text
    for part in ('"seed": 999', "ludus eval catch -c base=random", "ludus 1"):
        assert part in text
