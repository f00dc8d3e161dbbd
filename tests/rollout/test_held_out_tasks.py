"""Tasks are held out by what identifies them: no stage plays what another one has trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ludus import EvalConfig, ToolCall, ToolEnvironment, tool
from ludus.agents.oracle import OracleAgent
from ludus.data.episode import Episode, task_group_id
from ludus.environment.task_splits import key_digest, split_of
from ludus.envs.guess_number import GuessNumber
from ludus.envs.wordle import Wordle, answers
from ludus.rollout.progress import Notice, ProgressEvent
from ludus.tutoring.config import TutorConfig
from rollout.small_runs import read, run

HERE = __name__


class Letters(ToolEnvironment):
    """Name a letter. There are `count` tasks, of which the first observation shows which it is."""

    def reset(self, *, seed: int | None = None, count: int = 1000) -> str:
        return f"Task {(seed or 0) % count}."

    @tool
    def name(self, letter: str) -> str:
        """Name a letter.

        Args:
            letter: Any letter.
        """
        return self.finish(1.0, "Yes.")

    def oracle(self) -> ToolCall:
        return ToolCall(name="name", arguments={"letter": "a"})


def secret(environment: ToolEnvironment, episode: Episode) -> str:
    environment.reset(**episode.task)
    return str(vars(environment)["secret"])


async def played(out: Path, spec: str, split: str, **fields: Any) -> list[Episode]:
    await run(out, OracleAgent(), spec=spec, split=split, **fields)
    return read(out)


@pytest.mark.parametrize(("spec", "of"), [("wordle", Wordle), ("guess_number", GuessNumber)])
async def test_hidden_answers_of_held_out_tasks_are_in_no_training_task(
    spec: str, of: type[ToolEnvironment], tmp_path: Path
) -> None:
    secrets = {
        split: {secret(of(), each) for each in await played(tmp_path / split, spec, split, n=200)}
        for split in ("train", "validation", "test")
    }
    train, validation, test = secrets.values()
    assert not train & validation and not train & test and not validation & test
    assert len(train) > 60 and min(len(validation), len(test)) > 5


async def test_a_recipe_trains_on_no_word_that_grpo_or_its_evaluation_holds_out(
    tmp_path: Path,
) -> None:
    """The games of the tutor and of the student against those that follow, of as many seeds."""
    config = TutorConfig(episodes=300)
    lessons = config.play_config("tutor/1", 300)
    held_out = config.held_out_config(OracleAgent())
    assert (lessons.split, held_out.split, EvalConfig().split) == ("train", "validation", "test")
    taught = {
        secret(Wordle(), each)
        for each in await played(tmp_path / "a", "wordle", "train", n=300, seed=lessons.seed)
    }
    for split in ("validation", "test"):
        episodes = await played(tmp_path / split, "wordle", split, n=128, seed=held_out.seed)
        assert not taught & {secret(Wordle(), each) for each in episodes}


async def test_a_task_that_its_first_observation_shows_needs_no_key(tmp_path: Path) -> None:
    tasks = {
        split: {
            each.messages[1].content
            for each in await played(tmp_path / split, f"{HERE}:Letters", split)
        }
        for split in ("train", "validation", "test")
    }
    assert not tasks["train"] & tasks["validation"] and not tasks["validation"] & tasks["test"]


async def test_an_episode_records_the_seed_that_was_drawn(tmp_path: Path) -> None:
    """All attempts at a task have it, and playing it again gives the same task."""
    episodes = await played(tmp_path / "run", "wordle", "test", n=20, group_size=4)
    for episode in episodes:
        assert episode.seed == episode.task["seed"]
        assert episode.group_id == task_group_id("wordle", episode.task)
    groups = [episodes[at : at + 4] for at in range(0, 20, 4)]
    assert all(len({each.group_id for each in group}) == 1 for group in groups)
    again = await played(tmp_path / "again", "wordle", "test", n=20, group_size=4)
    assert [each.task for each in again] == [each.task for each in episodes]


async def test_all_tasks_are_played_on_request_and_those_of_a_file_as_they_are(
    tmp_path: Path,
) -> None:
    everything = await played(tmp_path / "all", "wordle", "all", n=300)
    words = {secret(Wordle(), each) for each in everything}
    assert {split_of(key_digest(word)) for word in words} == {"train", "validation", "test"}
    tasks = [{"words": [word], "seed": at} for at, word in enumerate(answers(5)[:30])]
    listed = await played(tmp_path / "file", "wordle", "test", n=30, tasks=tasks)
    assert [each.task["seed"] for each in listed] == list(range(30))


@pytest.mark.parametrize(
    ("spec", "tasks", "reason"),
    [
        ("catch", 5, "too few different tasks (5 in"),
        (f"{HERE}:Letters", 2, "too few different tasks (2 in"),
        (f"{HERE}:Letters", 1, "no `task_key()` that tells them apart"),
    ],
)
async def test_an_environment_with_too_few_tasks_is_named_in_one_line(
    spec: str, tasks: int, reason: str, tmp_path: Path
) -> None:
    said: list[str] = []

    def hear(event: ProgressEvent) -> None:
        if isinstance(event, Notice):
            said.append(event.message)

    task = {} if spec == "catch" else {"count": tasks}
    await run(
        tmp_path / "run", OracleAgent(), spec=spec, n=3, split="test", task=task, progress=hear
    )
    (line,) = (text for text in said if "held out" in text)
    assert reason in line and "\n" not in line


async def test_a_task_argument_may_have_chosen_the_split(tmp_path: Path) -> None:
    said: list[ProgressEvent] = []
    task = {"pool": "test"}
    await run(
        tmp_path, OracleAgent(), spec="wordle", n=9, split="test", task=task, progress=said.append
    )
    assert not [event for event in said if isinstance(event, Notice)]


async def test_training_tasks_of_such_an_environment_are_played_without_a_word(
    tmp_path: Path,
) -> None:
    said: list[ProgressEvent] = []
    await run(tmp_path / "run", OracleAgent(), spec="catch", n=5, progress=said.append)
    assert not [event for event in said if isinstance(event, Notice)]
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert "split" not in settings
