"""Collecting with random actions and with a tutor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from world import facts

from ludus.agents.human import HumanAgent
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import RandomAgent
from ludus.errors import ConfigError, RunError
from ludus.rollout import CollectConfig
from rollout.small_runs import read, run


async def test_a_run_with_random_actions_is_reproducible(tmp_path: Path) -> None:
    for name, concurrency in (("one", 1), ("many", 16)):
        await run(tmp_path / name, spec="guess_number", n=16, explore=0.3, concurrency=concurrency)
    first, second = read(tmp_path / "one"), read(tmp_path / "many")
    assert [facts(episode) for episode in first] == [facts(episode) for episode in second]
    explored = sum(len(episode.explored_turns) for episode in first)
    turns = sum(episode.turns for episode in first)
    assert 0.15 < explored / turns < 0.45


async def test_the_tutor_labels_all_turns_of_a_random_student(tmp_path: Path) -> None:
    await run(tmp_path / "run", RandomAgent(), spec="catch", n=10, tutor=OracleAgent())
    for episode in read(tmp_path / "run"):
        assert len(episode.tutor_replies) == episode.turns == 9
        assert None not in episode.tutor_replies
        assert episode.agent["provider"] == "random"
        assert episode.agent["tutor"] == {"provider": "oracle"}


@pytest.mark.parametrize(
    "other",
    [{"explore": 0.2}, {"tutor": OracleAgent()}, {"working": True}],
    ids=["explore", "tutor", "working"],
)
async def test_a_run_is_not_continued_with_other_exploration_or_tutor(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    await run(tmp_path / "run", n=2)
    with pytest.raises(RunError, match="agent"):
        await run(tmp_path / "run", n=4, **other)


async def test_a_tutor_without_an_oracle_is_refused_before_the_first_episode(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="tutor cannot teach"):
        await run(tmp_path / "run", RandomAgent(), spec="world:Two", tutor=OracleAgent())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_episode_tokens": 0}, "max_episode_tokens"),
        ({"seed": -1}, "seed"),
        ({"max_time": 0.0}, "max_time"),
        ({"explore": 1.5}, "explore"),
        ({"explore": -0.1}, "explore"),
        ({"tutor": "oracle"}, "tutor"),
        ({"tutor": HumanAgent()}, "tutor"),
        ({"agent": RandomAgent(), "working": True}, "working"),
    ],
)
def test_wrong_settings_are_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"`{name}`"):
        CollectConfig(**fields)


def test_the_working_is_asked_of_the_oracle_that_plays_or_teaches() -> None:
    assert CollectConfig(working=True).build_player().describe()["working"] is True
    config = CollectConfig(agent=RandomAgent(), tutor=OracleAgent(), working=True)
    assert config.build_player().describe()["tutor"] == {"provider": "oracle", "working": True}
