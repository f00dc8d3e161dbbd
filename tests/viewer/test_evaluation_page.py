"""The page of an evaluation: what `ludus eval` prints and draws."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, needs_chromium, open_page

from ludus import EvalConfig, evaluate_sync
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import RandomAgent
from ludus.evaluation import Candidate
from viewer.viewing import Viewed, viewing

__all__ = ["browser"]


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewed]:
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        candidates = [Candidate("chance", RandomAgent()), Candidate("oracle", OracleAgent())]
        config = EvalConfig(
            num_episodes=20, group_size=4, pass_k=(2, 4), sweep=("rows=4,6,10",), max_turns=12
        )
        evaluate_sync("catch", candidates, Path("evals/catch"), config)
        with viewing(Path("evals")) as running:
            running.wait_until_indexed()
            yield running


def test_results_are_those_of_the_summary(viewed: Viewed) -> None:
    shown = viewed.get("entry", key="evals/catch")["evaluation"]
    stored = json.loads((viewed.library.find("evals/catch").path / "summary.json").read_text())
    chance, oracle = (each["metrics"] for each in stored["candidates"])
    (verdict,) = shown["verdicts"]
    assert verdict["outcome"] == "better" and "oracle is better than chance" in verdict["text"]
    accuracy = next(each for each in shown["metrics"] if each["title"] == "Accuracy")
    assert accuracy["estimates"] == [chance["accuracy"], oracle["accuracy"]]
    assert accuracy["deltas"] == [None, stored["candidates"][1]["deltas"]["accuracy"]]
    (slices,) = shown["slices"]
    assert [row[0] for row in slices["rows"]] == ["rows=4", "rows=6", "rows=10"]


def test_a_list_of_evaluations_has_their_accuracies(viewed: Viewed) -> None:
    entries = {each["key"]: each for each in viewed.get("state")["entries"]}
    assert entries["evals/catch"]["summary"].endswith("oracle 100.0%")
    assert set(entries) == {"evals/catch", "evals/catch/chance", "evals/catch/oracle"}


def test_a_summary_without_candidates_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "summary.json").write_text('{"kind": "eval", "settings": {}}')
    with viewing(tmp_path) as viewed:
        (entry,) = viewed.get("state")["entries"]
        status, answer = viewed.request(f"{viewed.address}api/entry?key={entry['key']}")
    assert (status, entry["summary"]) == (400, "")
    assert "holds no evaluation" in answer["detail"]


@needs_chromium
def test_the_page_shows_verdicts_intervals_and_slices(browser: Any, viewed: Viewed) -> None:
    with open_page(browser) as page:
        page.goto(viewed.address)
        page.get_by_role("link", name="evals/catch", exact=True).click()
        page.locator(".notice.good").get_by_text("oracle is better than chance").wait_for()
        levels = page.get_by_role("img", name="Accuracy").first
        assert levels.locator("circle").count() == levels.locator("line.whisker").count() == 2
        rows = page.locator("table.results").nth(1).locator("tbody tr")
        assert [text.split("\t")[0] for text in rows.all_inner_texts()] == [
            "rows=4",
            "rows=6",
            "rows=10",
        ]
        page.get_by_role("link", name="60 episodes").first.click()
        page.locator(".episodes-list header strong", has_text="60 episodes").wait_for()


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_not_wider_than_the_screen(browser: Any, viewed: Viewed, width: int) -> None:
    with open_page(browser, viewport={"width": width, "height": 800}) as page:
        page.goto(f"{viewed.address}#/entry?key=evals/catch")
        page.locator("table.results").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
