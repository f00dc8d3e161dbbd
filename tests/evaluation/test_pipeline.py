"""Evaluations as a whole: real runs, and what is written of them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Self

import pytest

from evaluation.trying import (
    COUNTER,
    adding,
    evaluated,
    playing,
    quick_config,
    scripted,
)
from ludus.agents.agent import EpisodeContext, Player
from ludus.agents.oracle import OracleAgent
from ludus.data.episode_reader import find_episode
from ludus.errors import ConfigError, ModelBusy, RunError
from ludus.evaluation import Candidate, Evaluation, evaluate
from ludus.rollout import CollectConfig
from ludus.rollout.callbacks import CollectProgress
from ludus.rollout.collect import collect
from ludus.rollout.collector import Collector


def figures(found: Evaluation, label: str) -> dict[str, float]:
    (score,) = (score for score in found.scores if score.label == label)
    return {name: estimate.value for name, estimate in score.estimates.items()}


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


RIGHT = scripted("right", adding(2), adding(3))
WRONG = scripted("wrong", adding(2), adding(9))
SILENT = scripted("silent", "Five?")
MALFORMED = scripted("malformed", adding(2), adding("many"), adding(3))
WORDS_AT_LAST = scripted("words", adding(2), "Done.")


async def test_format_and_accuracy_are_told_apart(tmp_path: Path) -> None:
    candidates = [RIGHT, WRONG, SILENT, MALFORMED, WORDS_AT_LAST]
    found = await evaluated(tmp_path / "eval", candidates)
    told = {score.label: figures(found, score.label) for score in found.scores}
    assert {label: (f["format_compliance"], f["accuracy"]) for label, f in told.items()} == {
        "right": (1.0, 1.0),
        "wrong": (1.0, 0.0),
        "silent": (0.0, 0.0),
        "malformed": (0.0, 1.0),
        "words": (0.0, 0.0),
    }
    wrong = found.scores[1].deltas["accuracy"]
    assert (wrong.value, wrong.n) == (-1.0, 6) and found.scores[0].deltas == {}


async def test_every_candidate_plays_the_same_tasks_in_a_run_of_its_own(tmp_path: Path) -> None:
    both = [playing("one", OracleAgent()), playing("two", OracleAgent())]
    config = quick_config(num_episodes=8, group_size=2)
    await evaluate("catch", both, tmp_path / "eval", config)
    for index in range(8):
        one, two = (
            find_episode(tmp_path / "eval" / label / "episodes.jsonl", str(index))
            for label in ("one", "two")
        )
        assert (one.group_id, one.seed, one.tools) == (two.group_id, two.seed, two.tools)
        assert one.messages[:2] == two.messages[:2]


class Once(OracleAgent):
    """Counts how often it was asked to play."""

    begun = 0

    async def begin(self, situation: EpisodeContext) -> Player:
        type(self).begun += 1
        return await super().begin(situation)

    async def prepare(self, environments: object = ()) -> None:
        assert type(self).begun == 0, "it was made ready again"


async def test_who_has_played_is_not_played_again_and_others_join(tmp_path: Path) -> None:
    once = Candidate("once", Once)
    await evaluated(tmp_path / "eval", [once])
    assert Once.begun == 6
    found = await evaluated(tmp_path / "eval", [once, WRONG], solved_at=0.0)
    assert Once.begun == 6
    assert [score.episodes for score in found.scores] == [6, 6]
    assert figures(found, "wrong")["accuracy"] == 1.0, "the bar is another, the episodes are not"


class Ended(CollectProgress):
    """Ends the run as soon as it begins."""

    def begin(self, collector: Collector) -> None:
        collector.drain("enough")


async def test_what_is_stopped_says_so_and_goes_on(tmp_path: Path) -> None:
    def progress(label: str) -> nullcontext[CollectProgress]:
        return nullcontext(Ended() if label == "wrong" else CollectProgress())

    out = tmp_path / "eval"
    found = await evaluated(out, [RIGHT, WRONG, SILENT], progress=progress)
    assert (found.stopped, found.complete) == ("enough", False)
    assert [(score.label, score.remaining) for score in found.scores] == [
        ("right", 0),
        ("wrong", 6),
    ]
    assert json.loads((out / "summary.json").read_text())["complete"] is False
    found = await evaluated(out, [RIGHT, WRONG, SILENT])
    assert found.complete and [score.remaining for score in found.scores] == [0, 0, 0]


class Breaking(OracleAgent):
    """Cannot play some tasks at all."""

    async def begin(self, situation: EpisodeContext) -> Player:
        if situation.seed is not None and situation.seed % 2:
            raise ModelBusy("No.")
        return await super().begin(situation)


async def test_what_broke_is_counted_and_is_no_zero(tmp_path: Path) -> None:
    found = await evaluated(
        tmp_path / "eval", [RIGHT, playing("weak", Breaking())], num_episodes=12
    )
    weak = found.scores[1]
    assert 0 < weak.broken < 12
    accuracy, delta = weak.estimates["accuracy"], weak.deltas["accuracy"]
    assert (accuracy.value, accuracy.n, delta.n) == (1.0, 12 - weak.broken, 12 - weak.broken)


async def test_tasks_that_were_trained_on_do_not_count(tmp_path: Path) -> None:
    trained = await collect(COUNTER, tmp_path / "run", CollectConfig(num_episodes=30))
    oracle, out = [playing("oracle", OracleAgent())], tmp_path / "eval"
    whole = await evaluate(COUNTER, oracle, out, quick_config(num_episodes=30))
    data = trained.folder / "episodes.jsonl"
    held = await evaluate(
        COUNTER, oracle, out, quick_config(num_episodes=30, exclude_tasks_in=data)
    )
    (all_of_them,), (rest,) = whole.scores, held.scores
    assert all_of_them.contaminated == 0 and all_of_them.estimates["accuracy"].n == 30
    assert 0 < rest.contaminated < 30, "46 goals: some of 30 were among the other 30"
    assert rest.estimates["accuracy"].n == 30 - rest.contaminated


async def test_the_folder_holds_the_report_the_figures_and_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "eval"
    found = await evaluated(out, [RIGHT, WRONG], command="ludus eval …")
    assert names(out) == [
        "README.md",
        "results.svg",
        "right",
        "summary.json",
        "wrong",
    ]
    facts = json.loads((out / "summary.json").read_text())
    assert facts == json.loads(json.dumps(found.as_json()))
    assert facts["candidates"][1]["deltas"]["accuracy"]["value"] == -1.0


async def test_tasks_that_open_alike_are_told_apart_by_their_seed_and_that_is_said(
    tmp_path: Path,
) -> None:
    trained = await collect("wordle", tmp_path / "run", CollectConfig(num_episodes=6, seed=999))
    oracle = [playing("oracle", OracleAgent())]
    config = quick_config(num_episodes=8, exclude_tasks_in=trained.folder)
    found = await evaluate("wordle", oracle, tmp_path / "eval", config)
    assert (found.scores[0].contaminated, found.ambiguous_environments) == (6, ("wordle",))


@pytest.mark.parametrize("bar", [float("nan"), float("inf"), float("-inf")])
async def test_a_bar_that_is_no_number_is_refused(tmp_path: Path, bar: float) -> None:
    with pytest.raises(ConfigError, match="`solved_at`"):
        await evaluated(tmp_path / "eval", [RIGHT], solved_at=bar)
    assert not (tmp_path / "eval").exists()


@pytest.mark.parametrize("labels", [("a", "a"), ("a", "A"), ("summary.json",), ()])
async def test_labels_that_would_collide_are_refused(
    tmp_path: Path, labels: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match=r"called|No candidates"):
        await evaluated(tmp_path / "eval", [playing(label, OracleAgent()) for label in labels])
    assert not (tmp_path / "eval").exists()


async def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Mine.")
    with pytest.raises(RunError, match="holds no evaluation"):
        await evaluated(tmp_path, [RIGHT])
    run = await collect("catch", tmp_path / "run", CollectConfig(num_episodes=1))
    with pytest.raises(RunError, match="holds a run"):
        await evaluated(run.folder, [RIGHT])
    assert (tmp_path / "README.md").read_text() == "Mine."
    assert names(tmp_path) == ["README.md", "run"]


async def test_without_resuming_an_evaluation_is_made_beside_the_first(tmp_path: Path) -> None:
    first = await evaluated(tmp_path / "eval", [RIGHT])
    second = await evaluated(tmp_path / "eval", [RIGHT], resume=False)
    assert (first.folder.name, second.folder.name) == ("eval", "eval-2")
    assert (second.folder / "right" / "episodes.jsonl").exists()


class Holding(OracleAgent):
    """Knows how many of its kind are open at once."""

    open = most = 0

    async def __aenter__(self) -> Self:
        Holding.open += 1
        Holding.most = max(Holding.most, Holding.open)
        return self

    async def close(self) -> None:
        Holding.open -= 1


async def test_one_candidate_is_closed_before_the_next_is_opened(tmp_path: Path) -> None:
    await evaluated(tmp_path / "eval", [Candidate("a", Holding), Candidate("b", Holding)])
    assert (Holding.most, Holding.open) == (1, 0)
