"""A spec with `--base-url`: is it what the server serves, and what are its episodes called?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conformance.observation_environments import (
    ReasoningGymAction,
    ReasoningGymEnvironment,
    ReasoningGymObservation,
)
from conformance.openenv_environments import GuessAction, GuessEnvironment, GuessObservation
from conformance.test_ludus_client_on_openenv_server import their_server
from ludus_process import run_ludus
from world import Counter, serving

from ludus import ToolCall
from ludus.agents.scripted import ScriptedAgent
from ludus.errors import ConfigError
from ludus.rollout.endpoints import choose_recorded_name, fetch_server_names
from rollout.small_runs import Warnings, read, run

URL = "http://localhost:8000"


def recorded(spec: str, *served: str, has_variants: bool = False) -> tuple[str, list[str]]:
    said: list[str] = []
    name = choose_recorded_name(spec, URL, served, has_variants=has_variants, warn=said.append)
    return name, said


@pytest.mark.parametrize(
    ("spec", "served"),
    [
        ("reasoning_gym:chain_sum", ["ReasoningGymEnvironment", "reasoning_gym_env"]),
        ("reasoning_gym:chain_sum", ["Reasoning Gym"]),
        ("reasoning_gym:chain_sum", ["somebody/reasoning-gym-env"]),
        ("reasoning_gym:chain_sum", ["My own name", "reasoning_gym"]),
        ("echo", ["EchoEnvironment", "create_echo_environment"]),
        ("openspiel:tic_tac_toe", ["OpenSpielEnvironment", "openspiel_env"]),
        ("catch", ["catch"]),
        ("world:Counter", ["world:Counter"]),
        ("my_package.maze:Maze", ["MazeEnvironment"]),
        ("maze:Easy", ["maze"]),
        ("catch", []),
    ],
)
def test_the_same_environment_under_another_name_keeps_the_name_that_was_asked_for(
    spec: str, served: list[str]
) -> None:
    assert recorded(spec, *served) == (spec, [])


@pytest.mark.parametrize(
    ("spec", "served"),
    [
        ("openspiel:x", ["catch"]),
        ("wordle", ["EchoEnvironment", "echo_env"]),
        ("wordle", ["reasoning_gym:sudoku"]),
        ("world:Counter", ["wordle"]),
        ("maze:easy", ["maze:hard"]),
        ("world:Counter", ["world:Two"]),
    ],
)
def test_another_environment_of_this_machine_is_refused(spec: str, served: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        recorded(spec, *served)
    assert repr(served[0]) in str(caught.value) and repr(spec) in str(caught.value)


def test_an_unknown_environment_is_recorded_under_its_own_name_with_a_warning() -> None:
    name, (said,) = recorded("openspiel:x", "GuessEnvironment", "guess_env")
    assert name == "GuessEnvironment"
    assert "GuessEnvironment" in said and "openspiel:x" in said


def test_a_variant_that_a_reset_can_ask_for_is_what_it_is_asked_for() -> None:
    asked = "reasoning_gym:chain_sum"
    assert recorded(asked, "reasoning_gym:sudoku", has_variants=True) == (asked, [])
    assert recorded("reasoning_gym", "reasoning_gym:sudoku") == ("reasoning_gym:sudoku", [])


async def test_a_server_of_ours_that_serves_something_else_is_refused(tmp_path: Path) -> None:
    with serving("catch") as served, pytest.raises(ConfigError, match="serves 'catch'"):
        await run(tmp_path / "run", spec="openspiel:x", n=2, base_url=served.url)
    assert not (tmp_path / "run").exists()


async def test_a_class_of_ours_is_known_by_its_path(tmp_path: Path) -> None:
    with serving(Counter) as served:
        await run(tmp_path / "run", n=2, base_url=served.url)
    assert {episode.environment for episode in read(tmp_path / "run")} == {"world:Counter"}


def their_guessing() -> Any:
    return their_server(GuessEnvironment, GuessAction, GuessObservation)


async def test_episodes_from_a_server_of_theirs_bear_its_own_name(tmp_path: Path) -> None:
    reporter = Warnings()
    agent = ScriptedAgent(ToolCall(name="guess", arguments={"number": 3}))
    with their_guessing() as url:
        assert await fetch_server_names(url) == ["GuessEnvironment"]
        await run(tmp_path / "run", agent, spec="openspiel:x", n=2, base_url=url, progress=reporter)
    assert {episode.environment for episode in read(tmp_path / "run")} == {"GuessEnvironment"}
    assert any("GuessEnvironment" in words for words in reporter.warnings)


def test_the_command_warns_once_and_goes_on(tmp_path: Path) -> None:
    with their_guessing() as url:
        done = run_ludus(
            *("collect", "openspiel:x", "--base-url", url, "--provider", "random"),
            *("-n", "1", "--output-dir", str(tmp_path / "run"), "--max-turns", "2"),
        )
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("GuessEnvironment") >= 1
    assert {episode.environment for episode in read(tmp_path / "run")} == {"GuessEnvironment"}


async def test_the_tutorials_command_works_on_a_server_named_as_openenvs(tmp_path: Path) -> None:
    agent = ScriptedAgent(ToolCall(name="answer", arguments={"answer": "2"}))
    with their_server(ReasoningGymEnvironment, ReasoningGymAction, ReasoningGymObservation) as url:
        await run(tmp_path / "run", agent, spec="reasoning_gym:chain_sum", n=2, base_url=url)
    (name,) = {episode.environment for episode in read(tmp_path / "run")}
    assert name == "reasoning_gym:chain_sum"
    assert set(ReasoningGymEnvironment.asked) == {"chain_sum"}
