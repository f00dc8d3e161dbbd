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
    build_long_table,
    build_notes,
    build_tables,
    build_wide_table,
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


def test_two_candidates_have_one_delta() -> None:
    results = evaluation(base=attempts_solving(5), sft=attempts_solving(40))
    sheet = build_wide_table(results)
    assert sheet.header == ["Metric", "base", "sft", "Delta"]
    rows = {row[0]: row[1:] for row in sheet.rows}
    assert rows["Accuracy"] == [
        "10.0% (4.3 to 21.4)",
        "80.0% (67.0 to 88.8)",
        "+70.0 pp (+53.4 to +80.0)",
    ]
    assert rows["Mean reward"][2].startswith("+0.700 (")
    assert rows["n"] == ["50", "50", "50"]
    assert "Tokens in a reply" not in rows, "nobody counted any"


def test_number_of_deltas() -> None:
    three = evaluation(base=attempts_solving(5), sft=attempts_solving(40), dpo=attempts_solving(45))
    assert build_wide_table(three).header[-2:] == ["Delta sft", "Delta dpo"]
    assert build_wide_table(evaluation(only=attempts_solving(5))).header == ["Metric", "only"]


def test_more_than_three_candidates_use_the_long_table() -> None:
    four = evaluation(
        base=attempts_solving(5),
        sft=attempts_solving(40),
        dpo=attempts_solving(45),
        best=attempts_solving(50),
    )
    (sheet,) = build_tables(four)
    assert sheet == build_long_table(four)
    assert [row for row in sheet.rows if row[1] in ("base", "dpo")][2:4] == [
        ["Accuracy", "base", "10.0% (4.3 to 21.4)", "", "50"],
        ["", "dpo", "90.0% (78.6 to 95.7)", "+80.0 pp (+63.9 to +88.0)", "50"],
    ]
    assert "| Accuracy | base | 10.0% (4.3 to 21.4) |" in render_report(four)


def test_notes_list_excluded_episodes() -> None:
    broken = [attempt(48, None, broken=True), attempt(49, None)]
    results = evaluation(base=attempts_solving(5, of=48) + broken, sft=attempts_solving(40, of=49))
    expected = ["base: 1 episode broken", "base: 1 episode unscored", "sft: 1 episode still"]
    for note, start in zip(build_notes(results), expected, strict=True):
        assert note.startswith(start)
    assert "interrupted" in build_notes(replace(results, stopped="interrupted"))[-1]


def test_cut_off_row_and_note_only_if_not_zero() -> None:
    whole = evaluation(base=attempts_solving(5))
    assert "Cut off" not in [row[0] for row in build_wide_table(whole).rows]
    cut = [attempt(place, 0.0, format_compliant=None, cut_off=True) for place in range(50)]
    results = evaluation(base=attempts_solving(5), small=cut)
    results = replace(results, settings={**results.settings, "max_tokens": 16})
    rows = {row[0]: row[1:3] for row in build_wide_table(results).rows}
    assert rows["Format compliance"][1] == "-" and rows["n"][1] == "50"
    assert rows["Cut off"][1].startswith("100.0% (")
    (note,) = build_notes(results)
    assert note.startswith("small: 50 episodes ") and "`max_tokens` 16" in note


def test_missing_interval_is_explained() -> None:
    results = evaluation(4, base=[attempt(place, 0.5) for place in range(4)])
    rows = {row[0]: row[1] for row in build_wide_table(results).rows}
    assert rows["Mean reward"] == "0.500 (no interval)" and rows["Accuracy"] == "0.0% (0.0 to 49.0)"
    assert "fewer than 5 tasks" in describe_method(results)
    assert "fewer than" not in describe_method(evaluation(base=attempts_solving(5)))


def test_candidate_without_values_has_empty_cells() -> None:
    nothing = [attempt(0, None, broken=True)]
    results = evaluation(1, base=attempts_solving(1, of=1), other=nothing)
    assert {row[0]: row[2:] for row in build_wide_table(results).rows}["Accuracy"] == ["-", "-"]
    assert build_long_table(results).rows[3][1:] == ["other", "-", "-", "-"]


def test_format_compliance_is_shown_where_every_reply_was_cut_off() -> None:
    cut = [attempt(place, 0.0, format_compliant=None, cut_off=True) for place in range(6)]
    rows = {row[0]: row[1] for row in build_wide_table(evaluation(6, base=cut)).rows}
    assert rows["Format compliance"] == "-" and rows["Cut off"].startswith("100.0%")


def test_report_has_table_settings_and_command() -> None:
    text = render_report(evaluation(base=attempts_solving(5), sft=attempts_solving(40)))
    assert "| Accuracy | 10.0% (4.3 to 21.4) | 80.0% (67.0 to 88.8) |" in text
    for part in ('"seed": 999', "ludus eval catch -c base=random", "ludus 1"):
        assert part in text
