"""Mixtures of environments in `ludus collect` and `ludus eval`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.collect_cli import CLEAN_ENV, read_episodes, read_summary
from cli.in_process import Result, Runner

MIXTURE = "wordle=0.7,catch=0.3"


def invoke(*arguments: str | Path) -> Result:
    return Runner().invoke([*map(str, arguments)], env=CLEAN_ENV)


def test_each_episode_of_a_mixture_has_only_its_own_tools(tmp_path: Path) -> None:
    done = invoke("collect", MIXTURE, "-n", "20", "-o", tmp_path / "run")
    assert done.exit_code == 0, done.output
    found = read_episodes(tmp_path / "run")
    offered = {
        (episode.environment, *(tool["function"]["name"] for tool in episode.tools))
        for episode in found
    }
    assert offered == {("wordle", "guess"), ("catch", "move")}
    assert sum(episode.environment == "wordle" for episode in found) in (13, 14, 15)


def test_a_mixture_reports_the_reward_of_each_environment(tmp_path: Path) -> None:
    who = ("-c", "random", "-c", "oracle", "-n", "12", "-o", tmp_path / "eval")
    done = invoke("eval", MIXTURE, *who)
    assert done.exit_code == 0, done.output
    chance = read_summary(tmp_path / "eval")["candidates"][0]
    slices = {each["environment"]: each for each in read_summary(tmp_path / "eval")["slices"]}
    assert set(slices) == {"catch", "wordle"} and all(name in done.stdout for name in slices)
    played = read_episodes(tmp_path / "eval" / "random")
    total = chance["metrics"]["mean_reward"]
    for name in ("wordle", "catch"):
        rewards = [one.reward or 0.0 for one in played if one.environment == name]
        part = slices[name]["metrics"][0]["mean_reward"]
        assert part["n"] == len(rewards)
        assert part["value"] == pytest.approx(sum(rewards) / len(rewards))
        assert slices[name]["deltas"][1]["mean_reward"]["n"] == len(rewards)
    assert total["n"] == 12


def test_a_single_environment_has_no_slices(tmp_path: Path) -> None:
    done = invoke("eval", "catch", "-c", "oracle", "-n", "2", "-o", tmp_path / "eval")
    assert done.exit_code == 0 and read_summary(tmp_path / "eval")["slices"] == []
