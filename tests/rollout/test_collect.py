"""The collector: which episodes are played, and going on where it stood."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from world import facts, serving

from ludus.data.episode import Episode
from ludus.errors import ConfigError, ConnectFailed, RunError
from ludus.rollout.collect import collect
from ludus.rollout.config import CollectConfig
from rollout.small_runs import COUNTER, quick_config, read, run


async def test_every_planned_episode_is_there_once(tmp_path: Path) -> None:
    result = await run(tmp_path / "run", n=50)
    found = read(tmp_path / "run")
    assert [episode.episode_id[-6:] for episode in found] == [f"{i:06d}" for i in range(50)]
    assert {episode.reward for episode in found} == {1.0}
    assert result.summary["complete"]
    assert result.summary["mean_reward"] == 1.0
    assert json.loads((tmp_path / "run/summary.json").read_text())["episodes"] == 50


async def test_concurrency_changes_nothing_in_the_episodes(tmp_path: Path) -> None:
    await run(tmp_path / "one", n=30, concurrency=1)
    await run(tmp_path / "many", n=30, concurrency=30)
    assert [facts(e) for e in read(tmp_path / "one")] == [facts(e) for e in read(tmp_path / "many")]


@pytest.mark.parametrize("name", ["num_episodes", "group_size", "concurrency", "max_attempts"])
def test_numbers_that_must_be_positive_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match=f"`{name}`"):
        CollectConfig(**{name: 0})  # type: ignore[arg-type]


async def test_a_finished_run_is_not_played_again(tmp_path: Path) -> None:
    await run(tmp_path / "run")
    before = (tmp_path / "run/episodes.jsonl").read_bytes()
    result = await run(tmp_path / "run")
    assert result.new_episodes == 0
    assert (tmp_path / "run/episodes.jsonl").read_bytes() == before


async def test_a_finished_run_needs_neither_its_server_nor_its_model(tmp_path: Path) -> None:
    with serving("catch") as served:
        await run(tmp_path / "run", spec="catch", n=5, base_url=served.url)
    result = await run(tmp_path / "run", spec="catch", n=5, base_url=served.url)
    assert (result.new_episodes, result.summary["complete"]) == (0, True)
    with pytest.raises(ConnectFailed):
        await run(tmp_path / "run", spec="catch", n=6, base_url=served.url)


async def test_a_longer_run_goes_on_where_the_shorter_one_ended(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=10)
    result = await run(tmp_path / "run", n=25)
    assert (result.new_episodes, result.summary["episodes"]) == (15, 25)
    await run(tmp_path / "whole", n=25)
    assert [facts(e) for e in read(tmp_path / "run")] == [
        facts(e) for e in read(tmp_path / "whole")
    ]


async def test_a_changed_setting_is_refused_with_what_differs(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=3, seed=1)
    with pytest.raises(RunError, match=r"seed: 1 there, 2 here"):
        await run(tmp_path / "run", n=3, seed=2)
    with pytest.raises(RunError, match=r"max_turns: null there, 5 here"):
        await run(tmp_path / "run", n=3, seed=1, max_turns=5)


async def test_no_resume_starts_beside_the_old_run(tmp_path: Path) -> None:
    first = await run(tmp_path / "run", n=3)
    second = await run(tmp_path / "run", n=4, seed=9, resume=False)
    assert (first.folder, second.folder) == (tmp_path / "run", tmp_path / "run-2")
    assert len(read(first.folder)) == 3
    assert len(read(second.folder)) == 4


async def test_without_a_folder_the_settings_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = await collect(COUNTER, config=quick_config(num_episodes=2))
    longer = await collect(COUNTER, config=quick_config(num_episodes=4))
    other = await collect(COUNTER, config=quick_config(num_episodes=2, seed=1))
    assert short.folder == longer.folder != other.folder
    assert short.folder.parent == Path("runs")


async def test_a_group_plays_one_task_several_times(tmp_path: Path) -> None:
    await run(tmp_path / "run", n=12, group_size=4)
    groups: dict[str, list[Episode]] = {}
    for episode in read(tmp_path / "run"):
        groups.setdefault(episode.group_id, []).append(episode)
    assert [len(group) for group in groups.values()] == [4, 4, 4]
    assert all(len({e.messages[1].text for e in group}) == 1 for group in groups.values())


async def test_a_mix_is_played_with_each_environments_own_tools(tmp_path: Path) -> None:
    await run(tmp_path / "run", spec="catch=0.5,echo=0.5", n=20)
    found = read(tmp_path / "run")
    tools = {(e.environment, e.tools[0]["function"]["name"]) for e in found}
    assert {name for name, _ in tools} == {"catch", "echo"}
    assert len(tools) == 2


async def test_over_the_wire_the_episodes_are_the_same(tmp_path: Path) -> None:
    await run(tmp_path / "here", spec="reasoning_gym:chain_sum", n=8)
    with serving("reasoning_gym") as served:
        await run(tmp_path / "there", spec="reasoning_gym:chain_sum", n=8, base_url=served.url)
    here, there = read(tmp_path / "here"), read(tmp_path / "there")
    assert [facts(e) for e in here] == [facts(e) for e in there]
    assert here[0].task["dataset_name"] == "chain_sum"


async def test_a_url_is_an_environment_that_says_its_own_name(tmp_path: Path) -> None:
    with serving("catch") as served:
        await run(tmp_path / "run", spec=served.url, n=3)
    assert {e.environment for e in read(tmp_path / "run")} == {"catch"}
