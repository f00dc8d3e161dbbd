"""What a report says about each kind of folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from data.sample_episodes import attempt, written

from ludus import CurateConfig, EvalConfig, collect_sync, curate, evaluate_sync
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import RandomAgent
from ludus.data.episode import StopReason
from ludus.data.messages import Message
from ludus.errors import ConfigError, MissingExtra, RunError
from ludus.evaluation import Candidate
from ludus.evaluation.results import load_evaluation
from ludus.reporting import report
from ludus.reporting.charts import render_chart
from ludus.reporting.document import Histogram, LineChart, Section
from ludus.reporting.sections import read_section
from ludus.reporting.transcripts import summarize_episodes
from ludus.rollout import CollectConfig


def section_of(path: Path, samples: int = 2) -> Section:
    return read_section(path, samples=samples, name_flags=lambda text, command: text)


def facts_of(section: Section) -> dict[str, str]:
    return dict(section.facts)


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a data set and an evaluation."""
    folder = tmp_path_factory.mktemp("loop")
    config = CollectConfig(num_episodes=12, agent=RandomAgent())
    collect_sync("catch", folder / "run", config)
    curate(folder / "run", folder / "data", CurateConfig(min_reward=0.5))
    candidates = [Candidate("chance", RandomAgent()), Candidate("oracle", OracleAgent())]
    how = EvalConfig(num_episodes=8, sweep=("rows=4,10",))
    evaluate_sync("catch", candidates, folder / "eval", how)
    return folder


def test_a_run_has_its_best_beside_its_worst(loop: Path) -> None:
    section = section_of(loop / "run")
    assert (section.kind, section.title) == ("Run", "catch")
    assert facts_of(section)["Episodes"] == "12" and facts_of(section)["Agent"] == "random"
    kinds = [each.kind for each in section.transcripts]
    assert kinds[:2] == ["good", "problem"]
    rewards = {each.kind: each.detail.split(",")[0] for each in section.transcripts}
    assert rewards == {"good": "reward 1", "problem": "reward 0"}
    assert section.settings["environment"] == "catch"


def test_a_data_set_says_what_was_left_out(loop: Path) -> None:
    section = section_of(loop / "data", samples=1)
    (table,) = section.tables
    assert table.rows[0][0] == "min-reward" and "reward >= 0.5" in table.rows[0][1]
    assert "12 episodes" in section.headline and len(section.transcripts) == 1


def test_rows_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    odd = '{"messages": [{"role": "assistant", "content": "Hi", "tool_calls": 5}]}'
    (tmp_path / "train.jsonl").write_text("{not JSON\n" + odd + "\n")
    (tmp_path / "curation.json").write_text(
        '{"version": 1, "runs": [], "settings": {}, "report": {"episodes": 2, "steps": [], '
        '"rows": {"train": 2}}}'
    )
    (transcript,) = section_of(tmp_path, samples=2).transcripts
    assert transcript.turns[0].text == "Hi" and transcript.turns[0].calls == []


def test_pairs_show_the_chosen_beside_the_rejected(tmp_path: Path) -> None:
    def replies(text: str) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": text}]

    row = {"prompt": [{"role": "user", "content": "?"}], "chosen": replies("yes"),
           "rejected": replies("no")}  # fmt: skip
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    fields = {"report": {"episodes": 2, "kept": 2, "steps": [], "rows": {"train": 1}}}
    (tmp_path / "curation.json").write_text(json.dumps(fields))
    section = section_of(tmp_path)
    said = [(each.kind, [turn.text for turn in each.turns]) for each in section.transcripts]
    assert said == [("good", ["?", "yes"]), ("problem", ["?", "no"])]


def test_an_evaluation_has_verdicts_and_levels(loop: Path) -> None:
    section = section_of(loop / "eval")
    assert [each.kind for each in section.findings] == ["good"]
    assert "oracle is better than chance" in section.headline
    assert section.tables[0].title == "Results"
    assert [row[0] for row in section.tables[1].rows] == ["rows=4", "rows=10"]
    assert any("difficulty" in table.title for table in section.tables)


def test_a_stored_evaluation_is_the_one_that_was_written(loop: Path) -> None:
    stored = json.loads((loop / "eval" / "summary.json").read_text())
    assert load_evaluation(loop / "eval").as_json() == stored


def write_training(folder: Path, kind: str, lines: list[dict[str, Any]], **record: Any) -> Path:
    folder.mkdir()
    fields = {"kind": kind, "model": "tiny", "command": f"ludus train {kind}", "settings": {}}
    (folder / "training.json").write_text(json.dumps({**fields, **record}))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_training_has_curves_and_a_diagnosis(tmp_path: Path) -> None:
    lines = [
        {"step": step, "reward": 0.1 + step / 100, "loss": 0.1, "unscored": 0.0,
         "zero_variance": 0.1, "entropy": 1 - step / 100,
         "eval_reward": 0.2 if step % 20 == 0 else None}
        for step in range(1, 61)
    ]  # fmt: skip
    section = section_of(write_training(tmp_path / "model", "grpo", lines))
    charts = {chart.title: chart for chart in section.charts}
    reward = charts["Reward"]
    assert isinstance(reward, LineChart)
    assert list(reward.lines) == ["training tasks", "held-out tasks"]
    assert "reward 0.135 → 0.675" in section.headline and section.findings
    assert section.command == "ludus train grpo"


def test_the_test_loss_is_a_line_of_the_loss_also_if_it_is_a_single_point(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 1 / step} for step in range(1, 61)]
    lines.append({"step": 60, "eval_loss": 0.5})
    (chart,) = section_of(write_training(tmp_path / "model", "sft", lines)).charts
    assert isinstance(chart, LineChart) and chart.title == "Loss"
    assert [(label, len(points)) for label, points in chart.lines.items()] == [
        ("training", 60),
        ("test", 1),
    ]
    assert "test" in render_chart(chart)


def test_a_training_of_one_step_has_its_test_loss(tmp_path: Path) -> None:
    lines = [{"step": 1, "loss": 2.0}, {"step": 1, "eval_loss": 1.98765}]
    model = write_training(tmp_path / "model", "sft", lines)
    assert not section_of(model).charts and facts_of(section_of(model))["Test loss"] == "1.988"
    text = report(model, tmp_path / "report.html").read_text()
    assert "Test loss" in text and "1.988" in text


def test_the_last_test_loss_of_an_unfinished_training_is_a_fact(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 1.0, "eval_loss": 3.0 / step} for step in (1, 2, 3)]
    model = write_training(tmp_path / "model", "dpo", [*lines, {"step": 4, "loss": 1.0}])
    assert facts_of(section_of(model))["Test loss"] == "1"


def test_long_lines_are_means_of_neighbouring_steps() -> None:
    zigzag = [(float(step), float(step % 2)) for step in range(1, 601)]
    drawn = render_chart(LineChart("Reward", {"all": zigzag}))
    assert 20 < drawn.count("\nL ") < 120


def test_the_best_of_lost_games_is_no_success(tmp_path: Path) -> None:
    lost = [attempt(at, reward=at / 10, rewards={"solved": 0.0}) for at in range(4)]
    won = attempt(4, reward=0.5, rewards={"solved": 1.0})
    for name, episodes, kind in (("lost", lost, "note"), ("won", [*lost, won], "good")):
        written(tmp_path / name, *episodes)
        assert summarize_episodes(tmp_path / name, 1).transcripts[0].kind == kind


def test_an_unfinished_training_is_reported(tmp_path: Path) -> None:
    section = section_of(write_training(tmp_path / "model", "grpo", []))
    assert facts_of(section)["Steps"] == "not finished"
    assert [each.kind for each in section.findings] == ["note"]


def test_broken_episodes_are_a_finding(tmp_path: Path) -> None:
    episodes = [attempt(index, StopReason.BROKEN) for index in range(3)] + [attempt(3)]
    section = section_of(written(tmp_path / "episodes.jsonl", *episodes))
    assert [each.kind for each in section.findings] == ["problem"]
    assert [each.title.split(":")[0] for each in section.transcripts] == ["Sample", "Broken"]


def test_without_samples_no_transcript_is_in_the_report(loop: Path, tmp_path: Path) -> None:
    broken = written(tmp_path / "episodes.jsonl", attempt(0, StopReason.BROKEN), attempt(1))
    for path in (loop / "run", loop / "data", loop / "eval", broken):
        assert section_of(path).transcripts and not section_of(path, samples=0).transcripts


def test_long_texts_are_cut(tmp_path: Path) -> None:
    message = Message(role="user", content="x" * 10_000)
    section = section_of(written(tmp_path / "episodes.jsonl", attempt(0, messages=(message,))))
    (turn,) = section.transcripts[0].turns
    assert turn.text.count("x") == 4_000 and "6,000 more characters" in turn.text


def test_all_folders_are_in_one_page_in_their_order(loop: Path, tmp_path: Path) -> None:
    folders = [loop / "run", loop / "data", loop / "eval"]
    text = report(folders, tmp_path / "report.html").read_text()
    places = [text.index(f'id="section-{number}"') for number in (1, 2, 3)]
    assert (
        places == sorted(places) and "<script" not in text and "http" not in text.split("<body")[1]
    )
    assert "oracle is better than chance" in text


def test_a_report_without_matplotlib_names_the_extra(
    loop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"ludus-rl\[report\]"):
        report(loop / "run", tmp_path / "report.html")


def test_charts_of_constant_and_single_values_can_be_drawn() -> None:
    for chart in (
        LineChart("flat", {"a": [(1, 0.5), (2, 0.5)]}),
        LineChart("zero", {"a": [(1, 0.0), (1, 0.0)]}),
        Histogram("one", [0.0]),
        Histogram("many", [number / 7 for number in range(100)]),
    ):
        assert "NaN" not in render_chart(chart) and "<svg" in render_chart(chart)


@pytest.mark.parametrize(
    ("source", "out", "how", "error"),
    [
        ("missing", "r.html", {}, RunError),
        ("empty", "r.html", {}, RunError),
        ("no metadata", "r.html", {}, RunError),
        ("run", "empty", {}, RunError),
        ("run", "r.pdf", {}, RunError),
        ("run", "r.html", {"samples": -1}, ConfigError),
    ],
)
def test_what_cannot_be_reported_raises(
    loop: Path, tmp_path: Path, source: str, out: str, how: dict[str, Any], error: type[Exception]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "no metadata").mkdir()
    (tmp_path / "no metadata" / "train.jsonl").write_text('{"messages": []}\n')
    folder = loop / source if source == "run" else tmp_path / source
    with pytest.raises(error) as caught:
        report(folder, tmp_path / out, **how)
    assert "\n" not in str(caught.value) and not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("name", ["keep.py", "notes.md", "page.html", "report.pdf", "-"])
def test_only_reports_are_replaced(loop: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    out.write_text("mine")
    with pytest.raises(RunError):
        report(loop / "run", out)
    assert out.read_text() == "mine"


def test_a_report_is_replaced_by_the_next_one(loop: Path, tmp_path: Path) -> None:
    for _ in range(2):
        report(loop / "run", tmp_path / "report.html")
