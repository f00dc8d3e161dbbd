"""The figures as people see them: in words, in Markdown, in a picture."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluate.trying import attempt
from ludus.evaluate.attempts import Attempt
from ludus.evaluate.evaluation import Evaluation, Played, scores_of
from ludus.evaluate.metrics import metrics_at
from ludus.evaluate.picture import picture
from ludus.evaluate.report import report
from ludus.evaluate.table import head_of, notes_of, rows_of


def solving(share: int, of: int = 50) -> list[Attempt]:
    return [attempt(place, float(place < share)) for place in range(of)]


def evaluation(planned: int = 50, **played: Sequence[Attempt]) -> Evaluation:
    metrics = metrics_at(1.0)
    settings: dict[str, Any] = {"environment": "catch", "episodes": planned, "seed": 999}
    who = [Played(label, {"provider": "random"}, found) for label, found in played.items()]
    return Evaluation(
        folder=Path("evals/catch"),
        settings={**settings, "group_size": 1},
        metrics=metrics,
        scores=scores_of(who, metrics, planned, None),
        solved_at=1.0,
        not_in=None,
        stopped=None,
        versions={"ludus": "1"},
        command="ludus eval catch -c base=random",
    )


def test_two_candidates_have_one_delta_in_percentage_points() -> None:
    found = evaluation(base=solving(5), sft=solving(40))
    assert head_of(found) == ["Metric", "base", "sft", "Delta"]
    rows = {row[0]: row[1:] for row in rows_of(found)}
    assert rows["Accuracy"] == [
        "10.0% (4.3 to 21.4)",
        "80.0% (67.0 to 88.8)",
        "+70.0 pp (+53.4 to +80.0)",
    ]
    assert rows["Mean reward"][2].startswith("+0.700 (")
    assert rows["n"] == ["50", "50", "50"]
    assert "Tokens in a reply" not in rows, "nobody counted any"


def test_three_candidates_have_two_deltas_and_one_has_none() -> None:
    three = evaluation(base=solving(5), sft=solving(40), dpo=solving(45))
    assert head_of(three)[-2:] == ["Delta sft", "Delta dpo"]
    assert head_of(evaluation(only=solving(5))) == ["Metric", "only"]


def test_what_is_not_counted_is_told() -> None:
    broken = [attempt(48, None, broken=True), attempt(49, None)]
    found = evaluation(base=solving(5, of=48) + broken, sft=solving(40, of=49))
    assert notes_of(found) == [
        "base: 1 episode broken and left out of every figure (--retry-broken plays them again).",
        "base: 1 episode unscored and left out of accuracy and reward.",
        "sft: 1 episode still to be played.",
    ]
    assert notes_of(replace(found, stopped="interrupted"))[-1].startswith("Not everything")


def test_a_candidate_with_nothing_to_count_leaves_its_cells_empty() -> None:
    nothing = [attempt(0, None, broken=True)]
    found = evaluation(1, base=solving(1, of=1), other=nothing)
    assert {row[0]: row[2:] for row in rows_of(found)}["Accuracy"] == ["-", "-"]


def test_the_report_has_the_table_the_settings_and_the_command() -> None:
    text = report(evaluation(base=solving(5), sft=solving(40)))
    assert "| Accuracy | 10.0% (4.3 to 21.4) | 80.0% (67.0 to 88.8) |" in text
    for part in ("](results.svg)", '"seed": 999', "ludus eval catch -c base=random", "ludus 1"):
        assert part in text


def test_the_picture_has_a_bar_for_each_figure_of_each_candidate() -> None:
    found = evaluation(base=solving(5), sft=solving(40))
    drawn = xml.fromstring(picture(found))
    place = "{http://www.w3.org/2000/svg}"
    bars = [rect for rect in drawn.iter(f"{place}rect") if rect.get("width") == "46"]
    heights = [float(bar.get("height", "")) for bar in bars]
    assert heights == [200.0, 200.0, 20.0, 160.0, 20.0, 160.0]
    words = [text.text for text in drawn.iter(f"{place}text")]
    assert {"Format compliance", "Accuracy", "Mean reward", "80%", "base", "sft"} <= {*words}


def test_rewards_below_zero_hang_from_the_line() -> None:
    losing = [attempt(place, -float(1 + place % 2)) for place in range(10)]
    drawn = xml.fromstring(picture(evaluation(10, base=losing)))
    rects = drawn.iter("{http://www.w3.org/2000/svg}rect")
    *_, bar = (rect for rect in rects if rect.get("width") == "46")
    assert (float(bar.get("y", "")), float(bar.get("height", ""))) == (44.0, 150.0)


def test_a_picture_of_nothing_is_still_a_picture() -> None:
    drawn = xml.fromstring(picture(evaluation(1, base=[attempt(0, None, broken=True)])))
    assert drawn.tag.endswith("svg")
