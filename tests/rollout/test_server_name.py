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
from world import Counter, serving

from ludus import ToolCall
from ludus.agents.scripted import ScriptedAgent
from ludus.errors import ConfigError
from ludus.rollout.endpoints import check_server_name, fetch_server_names
from rollout.small_runs import read, run

URL = "http://localhost:8000"


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
        ("openspiel:x", ["GuessEnvironment", "guess_env"]),
        ("reasoning_gym:chain_sum", ["reasoning_gym:sudoku"]),
    ],
)
def test_the_same_environment_may_have_another_name(spec: str, served: list[str]) -> None:
    check_server_name(spec, URL, served)


@pytest.mark.parametrize(
    ("spec", "served"),
    [
        ("openspiel:x", ["catch"]),
        ("wordle", ["EchoEnvironment", "echo_env"]),
        ("wordle", ["reasoning_gym:sudoku"]),
        ("world:Counter", ["wordle"]),
    ],
)
def test_another_environment_of_this_machine_is_refused(spec: str, served: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_server_name(spec, URL, served)
    assert repr(served[0]) in str(caught.value) and repr(spec) in str(caught.value)


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


async def test_episodes_from_a_server_of_theirs_have_the_name_that_was_given(
    tmp_path: Path,
) -> None:
    agent = ScriptedAgent(ToolCall(name="guess", arguments={"number": 3}))
    with their_guessing() as url:
        assert await fetch_server_names(url) == ["GuessEnvironment"]
        await run(tmp_path / "run", agent, spec="openspiel:x", n=2, base_url=url)
    assert {episode.environment for episode in read(tmp_path / "run")} == {"openspiel:x"}


async def test_the_tutorials_command_works_on_a_server_named_as_openenvs(tmp_path: Path) -> None:
    agent = ScriptedAgent(ToolCall(name="answer", arguments={"answer": "2"}))
    with their_server(ReasoningGymEnvironment, ReasoningGymAction, ReasoningGymObservation) as url:
        await run(tmp_path / "run", agent, spec="reasoning_gym:chain_sum", n=2, base_url=url)
    (name,) = {episode.environment for episode in read(tmp_path / "run")}
    assert name == "reasoning_gym:chain_sum"
    assert set(ReasoningGymEnvironment.asked) == {"chain_sum"}
