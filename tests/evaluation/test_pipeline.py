"""Evaluations as a whole: real runs, and what is written of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from evaluation.small_evaluations import (
    COUNTER,
    add_call,
    candidate_with,
    evaluate_counter,
    quick_config,
    scripted_candidate,
)
from ludus.agents.agent import EpisodeContext, Player
from ludus.agents.oracle import OracleAgent
from ludus.agents.scripted import ScriptedAgent
from ludus.data.episode_reader import find_episode
from ludus.errors import ConfigError, ModelBusy, RunError
from ludus.evaluation import Candidate, Evaluation, evaluate
from ludus.rollout import CollectConfig
from ludus.rollout.collect import collect
from ludus.rollout.progress import CandidateStarted, ProgressEvent, RunStarted


def figures(evaluation: Evaluation, label: str) -> dict[str, float]:
    (score,) = (score for score in evaluation.scores if score.label == label)
    return {name: estimate.value for name, estimate in score.metrics.items()}


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


RIGHT = scripted_candidate("right", add_call(2), add_call(3))
RIGHT_AGAIN = scripted_candidate("again", add_call(2), add_call(3))
WRONG = scripted_candidate("wrong", add_call(2), add_call(9))
SILENT = scripted_candidate("silent", "Five?")
MALFORMED = scripted_candidate("malformed", add_call(2), add_call("many"), add_call(3))
WORDS_AT_LAST = scripted_candidate("words", add_call(2), "Done.")


async def test_format_and_accuracy_are_separate(tmp_path: Path) -> None:
    candidates = [RIGHT, WRONG, SILENT, MALFORMED, WORDS_AT_LAST]
    evaluation = await evaluate_counter(tmp_path / "eval", candidates)
    by_label = {score.label: figures(evaluation, score.label) for score in evaluation.scores}
    assert {label: (f["format_compliance"], f["accuracy"]) for label, f in by_label.items()} == {
        "right": (1.0, 1.0),
        "wrong": (1.0, 0.0),
        "silent": (0.0, 0.0),
        "malformed": (0.0, 1.0),
        "words": (0.0, 0.0),
    }
    wrong = evaluation.scores[1].deltas["accuracy"]
    assert (wrong.value, wrong.n) == (-1.0, 6) and evaluation.scores[0].deltas == {}


async def test_candidates_play_the_same_tasks_in_separate_runs(tmp_path: Path) -> None:
    both = [candidate_with("one", OracleAgent()), candidate_with("two", OracleAgent())]
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

    async def begin(self, context: EpisodeContext) -> Player:
        type(self).begun += 1
        return await super().begin(context)

    async def prepare(self, environments: object = ()) -> None:
        assert type(self).begun == 0, "it was made ready again"


async def test_complete_candidates_are_not_played_again(tmp_path: Path) -> None:
    once = Candidate("once", Once())
    await evaluate_counter(tmp_path / "eval", [once])
    assert Once.begun == 6
    evaluation = await evaluate_counter(tmp_path / "eval", [once, WRONG], solved_at=0.0)
    assert Once.begun == 6
    assert [score.episodes for score in evaluation.scores] == [6, 6]
    assert figures(evaluation, "wrong")["accuracy"] == 1.0, (
        "the bar is another, the episodes are not"
    )


async def test_stopped_evaluation_resumes(tmp_path: Path) -> None:
    label = ""

    def progress(event: ProgressEvent) -> None:
        nonlocal label
        if isinstance(event, CandidateStarted):
            label = event.label
        elif isinstance(event, RunStarted) and label == "wrong":
            event.run.drain("enough")

    out = tmp_path / "eval"
    evaluation = await evaluate_counter(out, [RIGHT, WRONG, SILENT], progress=progress)
    assert (evaluation.stopped, evaluation.complete) == ("enough", False)
    assert [(score.label, score.remaining) for score in evaluation.scores] == [
        ("right", 0),
        ("wrong", 6),
    ]
    assert json.loads((out / "summary.json").read_text())["complete"] is False
    evaluation = await evaluate_counter(out, [RIGHT, WRONG, SILENT])
    assert evaluation.complete and [score.remaining for score in evaluation.scores] == [0, 0, 0]


class Breaking(OracleAgent):
    """Cannot play some tasks at all."""

    async def begin(self, context: EpisodeContext) -> Player:
        if context.seed is not None and context.seed % 2:
            raise ModelBusy("No.")
        return await super().begin(context)


async def test_broken_episodes_are_not_zeros(tmp_path: Path) -> None:
    evaluation = await evaluate_counter(
        tmp_path / "eval", [RIGHT, candidate_with("weak", Breaking())], num_episodes=12
    )
    weak = evaluation.scores[1]
    assert 0 < weak.broken < 12
    accuracy, delta = weak.metrics["accuracy"], weak.deltas["accuracy"]
    assert (accuracy.value, accuracy.n, delta.n) == (1.0, 12 - weak.broken, 12 - weak.broken)


async def test_known_tasks_are_excluded(tmp_path: Path) -> None:
    trained = await collect(COUNTER, tmp_path / "run", CollectConfig(num_episodes=30))
    oracle, out = [candidate_with("oracle", OracleAgent())], tmp_path / "eval"
    config = quick_config(num_episodes=30, split="train")
    whole = await evaluate(COUNTER, oracle, out, config)
    data = trained.folder / "episodes.jsonl"
    held = await evaluate(COUNTER, oracle, out, replace(config, exclude_tasks_in=data))
    (all_of_them,), (rest,) = whole.scores, held.scores
    assert all_of_them.contaminated == 0 and all_of_them.metrics["accuracy"].n == 30
    assert 0 < rest.contaminated < 30, "46 goals: some of 30 were among the other 30"
    assert rest.metrics["accuracy"].n == 30 - rest.contaminated


async def test_folder_has_summary_and_report(tmp_path: Path) -> None:
    out = tmp_path / "eval"
    evaluation = await evaluate_counter(out, [RIGHT, WRONG], command="ludus eval …")
    assert names(out) == [
        "README.md",
        "right",
        "summary.json",
        "wrong",
    ]
    facts = json.loads((out / "summary.json").read_text())
    assert facts == json.loads(json.dumps(evaluation.as_json()))
    assert facts["candidates"][1]["deltas"]["accuracy"]["value"] == -1.0


async def test_equal_prompts_exclude_only_known_task_ids(
    tmp_path: Path,
) -> None:
    trained = await collect("wordle", tmp_path / "run", CollectConfig(num_episodes=6, seed=999))
    oracle = [candidate_with("oracle", OracleAgent())]
    config = quick_config(num_episodes=8, exclude_tasks_in=trained.folder, split="train")
    evaluation = await evaluate("wordle", oracle, tmp_path / "eval", config)
    assert evaluation.scores[0].contaminated == 6


@pytest.mark.parametrize("bar", [float("nan"), float("inf"), float("-inf")])
async def test_solved_at_must_be_finite(tmp_path: Path, bar: float) -> None:
    with pytest.raises(ConfigError, match="`solved_at`"):
        await evaluate_counter(tmp_path / "eval", [RIGHT], solved_at=bar)
    assert not (tmp_path / "eval").exists()


@pytest.mark.parametrize("labels", [("a", "a"), ("a", "A"), ("summary.json",), ()])
async def test_colliding_labels_are_rejected(tmp_path: Path, labels: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"called|No candidates"):
        await evaluate_counter(
            tmp_path / "eval", [candidate_with(label, OracleAgent()) for label in labels]
        )
    assert not (tmp_path / "eval").exists()


async def test_foreign_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Mine.")
    with pytest.raises(RunError, match="holds no evaluation"):
        await evaluate_counter(tmp_path, [RIGHT])
    run = await collect("catch", tmp_path / "run", CollectConfig(num_episodes=1))
    with pytest.raises(RunError, match="holds a run"):
        await evaluate_counter(run.folder, [RIGHT])
    assert (tmp_path / "README.md").read_text() == "Mine."
    assert names(tmp_path) == ["README.md", "run"]


async def test_without_resume_a_new_folder_is_used(tmp_path: Path) -> None:
    first = await evaluate_counter(tmp_path / "eval", [RIGHT])
    second = await evaluate_counter(tmp_path / "eval", [RIGHT], resume=False)
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


async def test_candidate_is_closed_before_the_next_opens(tmp_path: Path) -> None:
    await evaluate_counter(
        tmp_path / "eval", [Candidate("a", Holding()), Candidate("b", Holding())]
    )
    assert (Holding.most, Holding.open) == (1, 0)


async def test_a_sweep_plays_the_same_number_at_each_value(tmp_path: Path) -> None:
    out, sweep = tmp_path / "eval", ("goal=5,7",)
    evaluation = await evaluate_counter(out, [RIGHT, WRONG], task={}, sweep=sweep, num_episodes=4)
    assert evaluation.settings["episodes"] == 8 and evaluation.settings["sweep"] == ["goal=5,7"]
    five, seven = evaluation.slices
    assert (five.level, seven.level) == ("goal=5", "goal=7")
    accuracy = [[one["accuracy"].value for one in each.metrics] for each in (five, seven)]
    assert accuracy == [[1.0, 0.0], [0.0, 0.0]], "the script adds up to five"
    assert five.metrics[0]["accuracy"].n == 4
    assert "goal=7" in (out / "README.md").read_text()
    more = await evaluate_counter(out, [RIGHT, WRONG], task={}, sweep=sweep, num_episodes=5)
    assert more.slices[1].metrics[0]["accuracy"].n == 5, "the first episodes are the same"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sweep": ("goal=5..3",)}, "lower end"),
        ({"sweep": ("gaol=5,7",)}, "'goal'"),
        ({"sweep": ("goal=5,7",), "task": {"goal": 5}}, "both set goal"),
        ({"sweep": ("goal=5,7",), "task": {}, "tasks": ({"goal": 5},)}, "`tasks`"),
        ({"sweep": ("goal=5,no",), "task": {}}, "goal"),
        ({"sweep": ("goal=5,7",), "task": {}, "group_size": 4}, "multiple"),
        ({"pass_k": (3,), "group_size": 2}, "`group_size`"),
    ],
)
async def test_wrong_sweeps_raise_before_anything_is_played(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        await evaluate_counter(tmp_path / "eval", [RIGHT], **{"task": {}, **fields})
    assert not (tmp_path / "eval").exists()


async def test_pass_at_k_of_several_attempts(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"group_size": 3, "pass_k": (1, 2)}
    evaluation = await evaluate_counter(tmp_path / "eval", [RIGHT, WRONG], **fields)
    assert [figures(evaluation, "right")[f"pass@{k}"] for k in (1, 2)] == [1.0, 1.0]
    assert figures(evaluation, "wrong")["pass@2"] == 0.0
    usual = await evaluate_counter(tmp_path / "eval", [RIGHT], group_size=3)
    assert "pass@3" in figures(usual, "right") and "pass@2" not in figures(usual, "right")


async def test_verdicts_are_in_summary_and_report(tmp_path: Path) -> None:
    out = tmp_path / "eval"
    evaluation = await evaluate_counter(out, [RIGHT, WRONG, RIGHT_AGAIN], num_episodes=20)
    assert [score.label for score in evaluation.worse_candidates] == ["wrong"]
    (_, worse), (_, same) = evaluation.describe_verdicts()
    assert "wrong is worse than right" in worse and "not resolved" in same
    assert worse in (out / "README.md").read_text()
    stored = json.loads((out / "summary.json").read_text())["candidates"][1]["verdicts"]
    assert stored["accuracy"] == "worse"


async def test_a_second_evaluation_in_the_same_folder_raises(tmp_path: Path) -> None:
    out, refused = tmp_path / "eval", []

    class Slow(ScriptedAgent):
        async def prepare(self, environments: object = ()) -> None:
            with pytest.raises(RunError, match="Another process is writing") as error:
                await evaluate_counter(out, [RIGHT])
            refused.append(error)

    await evaluate_counter(out, [candidate_with("slow", Slow(add_call(5)))])
    assert len(refused) == 1 and names(out / "slow") and not (out / "right").exists()
