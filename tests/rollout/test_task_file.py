"""Tasks from a file, in place of those that a seed gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.curation import CurateConfig, curate
from ludus.errors import ConfigError, RunError
from ludus.rollout import CollectConfig, read_tasks
from ludus.rollout.collect import collect
from ludus.rollout.plan import task_seed
from rollout.small_runs import read


def a_file(path: Path, *tasks: Any) -> Path:
    path.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    return path


def played(folder: Path) -> list[tuple[dict[str, Any], str]]:
    return [(episode.task, episode.group_id) for episode in read(folder)]


async def test_every_line_is_played_with_its_own_arguments(tmp_path: Path) -> None:
    tasks = read_tasks(a_file(tmp_path / "t", {"seed": 5, "rows": 4}, {"rows": 6}, {"seed": 0}))
    await collect("catch", tmp_path / "run", CollectConfig(task={"columns": 3}, tasks=tasks))
    assert [task for task, _ in played(tmp_path / "run")] == [
        {"columns": 3, "rows": 4, "seed": 5},
        {"columns": 3, "rows": 6, "seed": task_seed(0, 1)},
        {"columns": 3, "seed": 0},
    ]


async def test_groups_play_each_line_several_times_and_n_limits_them(tmp_path: Path) -> None:
    tasks = [{"seed": seed} for seed in (7, 8, 9)]
    config = CollectConfig(num_episodes=4, tasks=tasks, group_size=2)
    await collect("catch", tmp_path / "run", config)
    assert [task["seed"] for task, _ in played(tmp_path / "run")] == [7, 7, 8, 8]
    assert len({group for _, group in played(tmp_path / "run")}) == 2


async def test_a_run_goes_on_with_the_same_tasks_and_with_no_others(tmp_path: Path) -> None:
    tasks = [{"seed": seed} for seed in range(4)]
    out = tmp_path / "run"
    first = await collect("catch", out, CollectConfig(num_episodes=2, tasks=tasks))
    rest = await collect("catch", out, CollectConfig(num_episodes=99, tasks=tasks))
    assert (first.new_episodes, rest.new_episodes, rest.summary["episodes"]) == (2, 2, 4)
    with pytest.raises(RunError, match="tasks: "):
        await collect("catch", out, CollectConfig(tasks=tasks[:3]))


async def test_what_is_written_for_nemo_gym_is_played_again(tmp_path: Path) -> None:
    await collect("reasoning_gym:chain_sum", tmp_path / "run", CollectConfig(num_episodes=3))
    curate([tmp_path / "run"], tmp_path / "rows", CurateConfig(to="nemo-gym-input"))
    tasks = read_tasks(tmp_path / "rows" / "train.jsonl")
    await collect("reasoning_gym:chain_sum", tmp_path / "again", CollectConfig(tasks=tasks))
    assert sorted(played(tmp_path / "again"), key=str) == sorted(played(tmp_path / "run"), key=str)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "t:2 is not JSON"),
        ("[1]", "t:2 is not a JSON object"),
        ('{"seed": "7"}', "t:2: .*'7'"),
        ('{"responses_create_params": {"input": []}}', "t:2 has a prompt"),
    ],
)
def test_a_line_that_is_no_task_is_named(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(f'{{"seed": 1}}\n{line}\n')
    with pytest.raises(ConfigError, match=words):
        read_tasks(path)


def test_a_file_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_tasks(tmp_path / "t")
    with pytest.raises(ConfigError, match="no tasks"):
        read_tasks(a_file(tmp_path / "t"))


async def test_tasks_are_for_one_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`tasks`"):
        await collect("wordle,catch", tmp_path / "run", CollectConfig(tasks=[{"seed": 1}]))
    assert not (tmp_path / "run").exists()
