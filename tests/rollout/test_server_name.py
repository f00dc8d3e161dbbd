"""A spec with `--base-url`: what its episodes are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from ludus.rollout.endpoints import fetch_server_name
from rollout.small_runs import read, run


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
        assert await fetch_server_name(url) == "GuessEnvironment"
        await run(tmp_path / "run", agent, spec="openspiel:x", n=2, base_url=url)
    assert {episode.environment for episode in read(tmp_path / "run")} == {"openspiel:x"}


async def test_the_tutorials_command_works_on_a_server_named_as_openenvs(tmp_path: Path) -> None:
    agent = ScriptedAgent(ToolCall(name="answer", arguments={"answer": "2"}))
    with their_server(ReasoningGymEnvironment, ReasoningGymAction, ReasoningGymObservation) as url:
        await run(tmp_path / "run", agent, spec="reasoning_gym:chain_sum", n=2, base_url=url)
    (name,) = {episode.environment for episode in read(tmp_path / "run")}
    assert name == "reasoning_gym:chain_sum"
    assert set(ReasoningGymEnvironment.asked) == {"chain_sum"}
