"""Actions that an environment of OpenEnv refuses by raising: the model is told, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from world import serving

from conformance.openenv_environments import (
    CorridorAction,
    CorridorEnvironment,
    GuessObservation,
)
from conformance.test_ludus_client_on_openenv_server import their_server
from ludus import CollectConfig, ToolCall, collect, connect, episodes
from ludus.agents.scripted import ScriptedAgent
from ludus.errors import SessionLost
from ludus.train import environment_factory

IN_PROCESS = f"{CorridorEnvironment.__module__}:{CorridorEnvironment.__name__}"
MOVES = (5, "north", 1, 1)


@contextmanager
def environment(where: str) -> Iterator[str]:
    if where == "in process":
        yield IN_PROCESS
    elif where == "Ludus server":
        with serving(CorridorEnvironment) as served:
            yield served.url
    else:
        with their_server(CorridorEnvironment, CorridorAction, GuessObservation) as url:
            yield url


everywhere = pytest.mark.parametrize("where", ["in process", "Ludus server", "OpenEnv server"])


def walk(*directions: Any) -> CollectConfig:
    calls = [ToolCall(name="direction", arguments={"direction": each}) for each in directions]
    return CollectConfig(agent=ScriptedAgent(*calls), num_episodes=2)


@everywhere
async def test_an_illegal_action_is_shown_to_the_model_and_the_episode_goes_on(
    where: str, tmp_path: Path
) -> None:
    with environment(where) as env:
        await collect(env, tmp_path / "run", walk(*MOVES))
    for episode in episodes(tmp_path / "run/episodes.jsonl"):
        assert (episode.reward, episode.done, episode.error) == (1.0, True, None)
        told = [message.text for message in episode.messages if message.role == "tool"]
        assert "5 is not a valid Direction" in told[0] and ".py:" not in told[0]
        assert "direction" in told[1] and "valid integer" in told[1]
        assert (episode.tool_calls, episode.malformed_calls) == (4, 2)


@everywhere
def test_an_environment_for_trl_shows_it_to_the_model_too(where: str) -> None:
    with environment(where) as env:
        played = environment_factory(env)()
        played.reset(seed=1)
        replies = [played.direction(direction=each) for each in MOVES]
        assert "5 is not a valid Direction" in replies[0]
        assert (played._done, played.get_reward()) == (True, 1.0)
        played._finalizer()


async def test_a_session_that_the_server_closes_is_lost() -> None:
    """OpenEnv's server cannot encode the error of a validator, and ends the session."""
    with environment("OpenEnv server") as url:
        async with connect(url).session() as session:
            await session.reset()
            with pytest.raises(SessionLost):
                await session.call("direction", {"direction": 101})
