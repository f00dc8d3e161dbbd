"""Sample episodes at the end of a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
from data.sample_episodes import attempt, written

from ludus.cli.display.recipe_ending import _choose_pair, _print_samples, print_ending
from ludus.data.episode import StopReason
from ludus.recipe.recipe_file import read_recipe


def test_only_scored_attempts_are_compared() -> None:
    broken, scored = attempt(0, StopReason.BROKEN), attempt(0)
    worse = attempt(1, reward=0.0)
    assert _choose_pair({0: broken, 1: worse}, {0: scored, 1: worse}) == (worse, worse)
    assert _choose_pair({0: broken}, {0: scored}) is None


def test_an_evaluation_that_broke_before_its_first_message_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label in ("base", "sft"):
        (tmp_path / label).mkdir()
        written(tmp_path / label / "episodes.jsonl", attempt(0, StopReason.BROKEN))
    _print_samples(tmp_path, ("base", "sft"))
    assert capsys.readouterr().out == ""


def test_control_characters_of_a_recipe_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odd.toml"
    file.write_text('next = ["ludus show {collect} \\u001b[31m"]\n[collect]\nenv = "catch"\n')
    print_ending(read_recipe(str(file)), {"collect": tmp_path / "\x1b[2J"}, (), ran=())
    printed = capsys.readouterr().out
    assert "ludus show" in printed and "\x1b" not in printed
