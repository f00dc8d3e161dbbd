"""Rounds of a tutor, on a tiny model and real environments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from policy.models import saved
from tiny_tokenizers import of_family
from train.short_runs import TRAIN_FIELDS

from ludus.data.episode import Episode
from ludus.data.episode_reader import episodes
from ludus.errors import ConfigError, RunError
from ludus.policy.load import load
from ludus.rollout.progress import PhaseProgress
from ludus.train import TrainConfig
from ludus.tutoring import TutorConfig, TutorResult
from ludus.tutoring.pipeline import tutor

TASK = {"rows": 3, "columns": 3}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("model"), of_family("qwen3")))


def quick_config(**fields: Any) -> TutorConfig:
    defaults: dict[str, Any] = {
        "rounds": 2,
        "episodes": 6,
        "eval_episodes": 3,
        "max_tokens": 12,
        "max_turns": 3,
        "task": TASK,
        "train": TrainConfig(**TRAIN_FIELDS, steps=2),
    }
    return TutorConfig(**{**defaults, **fields})


def run(folder: Path, name: str) -> list[Episode]:
    return list(episodes(folder / "rounds" / name))


@pytest.fixture(scope="module")
def taught(model: str, tmp_path_factory: pytest.TempPathFactory) -> TutorResult:
    return tutor("catch", model, tmp_path_factory.mktemp("out") / "taught", quick_config())


def test_the_tutor_plays_less_from_round_to_round(taught: TutorResult) -> None:
    counts = [(each.tutor_episodes, each.student_episodes) for each in taught.rounds]
    assert counts == [(6, 0), (3, 3)]
    assert [len(run(taught.folder, f"{name}")) for name in ("1/tutor", "2/tutor", "2/student")] == [
        6,
        3,
        3,
    ]
    assert not (taught.folder / "rounds/1/student").exists()


def test_the_student_of_a_round_is_the_model_of_the_last_and_is_labelled(
    taught: TutorResult,
) -> None:
    for episode in run(taught.folder, "2/student"):
        assert episode.agent["model"].endswith("rounds/1/model")
        assert len(episode.tutor_replies) == episode.turns > 0
    agreements = [each.agreement for each in taught.rounds]
    assert agreements[0] is None and agreements[1] is not None and 0 <= agreements[1] <= 1


def test_rows_of_all_rounds_are_trained_on(taught: TutorResult) -> None:
    sources = [
        {json.loads(line)["episode_id"] for line in file.read_text().splitlines()}
        for file in (taught.folder / f"rounds/{number}/data/train.jsonl" for number in (1, 2))
    ]
    assert sources[0] < sources[1]
    assert [each.rows for each in taught.rounds] == sorted(each.rows for each in taught.rounds)


def test_tasks_are_new_in_every_round_and_held_out_ones_are_the_same(taught: TutorResult) -> None:
    seeds = {
        name: {episode.seed for episode in run(taught.folder, name)}
        for name in ("1/tutor", "2/tutor", "2/student", "1/held_out", "2/held_out")
    }
    assert seeds["1/held_out"] == seeds["2/held_out"]
    others = [found for name, found in seeds.items() if name != "2/held_out"]
    assert sum(map(len, others)) == len(set().union(*others))


def test_the_model_is_in_the_output_folder_with_its_metrics(taught: TutorResult) -> None:
    assert load(str(taught.folder), device="cpu").model.num_parameters() > 0
    assert taught.kept_round in (1, 2) and taught.stopped is None
    rewards = [each.reward for each in taught.rounds]
    kept = taught.rounds[(taught.kept_round or 0) - 1]
    assert kept.reward == max(reward for reward in rewards if reward is not None)
    assert str(taught.folder) in (taught.folder / "README.md").read_text()
    weights = taught.folder / "model.safetensors"
    assert weights.is_file() and not (taught.folder / "rounds/1/model").exists()


def test_finished_rounds_are_not_played_again(taught: TutorResult, model: str) -> None:
    journal = taught.folder / "rounds/2/student/episodes.jsonl"
    before = journal.read_bytes()
    again = tutor("catch", model, taught.folder, quick_config())
    assert again.rounds == taught.rounds and journal.read_bytes() == before


def test_other_settings_are_refused(taught: TutorResult, model: str) -> None:
    with pytest.raises(RunError, match="explore"):
        tutor("catch", model, taught.folder, quick_config(explore=0.5))
    assert (taught.folder / "model.safetensors").is_file()


@pytest.mark.slow
def test_more_rounds_may_follow(taught: TutorResult, model: str) -> None:
    journal = taught.folder / "rounds/2/student/episodes.jsonl"
    before = journal.read_bytes()
    longer = tutor("catch", model, taught.folder, quick_config(rounds=3))
    assert longer.rounds[:2] == taught.rounds and len(longer.rounds) == 3
    assert journal.read_bytes() == before


@pytest.mark.slow
def test_other_settings_replace_the_rounds_where_they_are_overwritten(
    model: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    tutor("catch", model, out, quick_config(rounds=1, episodes=2, eval_episodes=1))
    other = quick_config(rounds=1, episodes=2, eval_episodes=1, explore=0.5)
    result = tutor("catch", model, out, other, overwrite=True)
    assert len(result.rounds) == 1 and (out / "model.safetensors").is_file()


def test_a_folder_of_something_else_is_refused(model: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"notes\.txt"):
        tutor("catch", model, tmp_path, quick_config())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


class StoppingProgress:
    """Asks to stop as soon as a phase with this text begins."""

    def __init__(self, text: str) -> None:
        self.phases: list[str] = []
        self.stopping: str | None = None
        self._text = text

    def phase(self, progress: PhaseProgress) -> None:
        self.phases.append(progress.phase)
        if self._text in progress.phase:
            self.stopping = "interrupted"

    def begin(self, total_steps: int, resumed_from: int | None) -> None: ...

    def step(self, line: Mapping[str, Any]) -> None: ...

    def say(self, words: str) -> None: ...


def test_a_stopped_round_is_continued(model: str, tmp_path: Path) -> None:
    config, out = quick_config(rounds=1, episodes=400, task={}), tmp_path / "out"
    for phase in ("Round 1 of 1: the tutor plays", "Round 1 of 1: tokenizing"):
        progress = StoppingProgress(phase)
        stopped = tutor("guess_number", model, out, config, progress=progress)
        assert (stopped.stopped, stopped.rounds) == ("interrupted", ())
        assert ("plays" in phase) == (phase in progress.phases[-1])
    done = tutor("guess_number", model, out, config)
    assert len(done.rounds) == 1 and done.stopped is None
    ids = [episode.episode_id for episode in run(out, "1/tutor")]
    assert len(ids) == len(set(ids)) == config.episodes
    assert json.loads((out / "training.json").read_text())["resumed_from"] == [1]


@pytest.mark.slow
def test_a_model_that_can_play_starts_as_the_student(model: str, tmp_path: Path) -> None:
    config = quick_config(rounds=1, episodes=3, tutor_share=0.0)
    result = tutor("catch", model, tmp_path / "out", config)
    assert result.rounds[0].agreement is not None
    assert {each.agent["model"] for each in run(tmp_path / "out", "1/student")} == {model}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"rounds": 0}, "rounds"),
        ({"episodes": 0}, "episodes"),
        ({"tutor_share": 1.5}, "tutor_share"),
        ({"tutor_decay": -1}, "tutor_decay"),
        ({"explore": 2}, "explore"),
        ({"tutor": "oracle"}, "tutor"),
        ({"keep": "worst"}, "keep"),
        ({"train": TrainConfig(beta=0.1)}, "beta"),
    ],
)
def test_wrong_settings_are_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"`{name}`"):
        TutorConfig(**fields)
