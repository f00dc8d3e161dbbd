"""From playing to the look before training, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.curate_cli import card_steps, curate, kept_ids, ludus, printed_steps, read_rows, stdout_of
from tiny_tokenizers import WORDS, of_family, student

from ludus.data.episode_reader import episodes
from ludus.data.messages import without_call_ids


def played(folder: Path) -> tuple[Path, Path]:
    """The same words by one who knows them and by one who guesses, four times each."""
    oracle, random = folder / "oracle", folder / "random"
    words = ("collect", "wordle", "-n", "24", "--group-size", "4")
    stdout_of(ludus(*words, "-o", oracle))
    stdout_of(ludus(*words, "--agent", "random", "-o", random))
    return oracle, random


def test_what_was_played_becomes_rows_that_a_student_can_learn(tmp_path: Path) -> None:
    oracle, random = played(tmp_path)
    data, model = tmp_path / "data", tmp_path / "model"
    of_family("qwen3").save_pretrained(model)
    where = "reward >= 0.8 and turns between 1 and 4 and environment = 'wordle'"
    said = stdout_of(curate(oracle, random, "--to", "sft", "--where", where, "-o", data))
    solutions = {
        (each.group_id, json.dumps(without_call_ids([m.model_dump() for m in each.messages])))
        for run in (oracle, random)
        for each in episodes(run / "episodes.jsonl")
        if each.reward is not None and each.reward >= 0.8 and 1 <= each.turns <= 4
    }
    assert {row["group_id"] for row in read_rows(data)} == {group for group, _ in solutions}
    assert len(kept_ids(data)) == len(solutions), "the same solution of a word is there once"
    assert printed_steps(said) == card_steps(data)

    looked = ludus("lint", data, "--student", model, "--json")
    report = json.loads(looked.stdout)
    assert looked.returncode == 0, looked.stdout
    assert report["rows"] == len(kept_ids(data))
    shown = stdout_of(ludus("lint", data, "--student", model))
    assert "⟦" in shown and " 0 errors" in shown


@pytest.mark.slow
def test_the_look_before_training_decides_by_its_exit_code(tmp_path: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "data"
    stdout_of(ludus("collect", "wordle", "-n", "6", "-o", run))
    for name, made in (("knows", of_family("qwen3")), ("no_tools", student(WORDS))):
        made.save_pretrained(tmp_path / name)
    stdout_of(curate(run, "-o", data))
    assert ludus("lint", data, "--student", tmp_path / "knows").returncode == 0
    unfit = ludus("lint", data, "--student", tmp_path / "no_tools")
    assert unfit.returncode == 1 and "drops-tools" in unfit.stdout


@pytest.mark.slow
def test_pairs_of_good_and_bad_play_pass_the_look_before_training(tmp_path: Path) -> None:
    oracle, random = played(tmp_path)
    data, model = tmp_path / "data", tmp_path / "model"
    of_family("qwen3").save_pretrained(model)
    stdout_of(curate(oracle, random, "--to", "dpo", "--test-size", "0.3", "-o", data))
    pairs = [*read_rows(data), *read_rows(data, "test")]
    assert len(pairs) == 6 and all(row["chosen_reward"] > row["rejected_reward"] for row in pairs)
    looked = ludus("lint", data, "--student", model)
    assert looked.returncode == 0, looked.stdout


def test_sums_are_split_by_task_and_none_is_lost(tmp_path: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "data"
    stdout_of(ludus("collect", "reasoning_gym:chain_sum", "-n", "60", "-o", run))
    stdout_of(curate(run, "--test-size", "0.2", "-o", data))
    train, test = read_rows(data), read_rows(data, "test")
    assert (len(train), len(test)) == (48, 12)
    assert not {row["group_id"] for row in train} & {row["group_id"] for row in test}
    assert ludus("lint", data).returncode == 0
