"""A recipe that is killed again and again ends with the files and figures of one that is not."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from cli.train_cli import OFFLINE_ENV
from ludus_process import run_ludus, start_ludus
from recipe.small_recipes import save_models, set_flags

COMMAND = (
    *("run", "quickstart"),
    *set_flags(
        (
            *("collect.num_episodes=60", "sft.steps=12", "sft.checkpoint_every=0.01s"),
            *("eval.num_episodes=20", "eval.max_tokens=24"),
        )
    ),
)
ROWS = ("curate/train.jsonl", "curate/test.jsonl", "sft/model.safetensors", "sft/config.json")
LINES = 18
"""Lines that an undisturbed run prints on stderr, at least: kills come after one of them."""


def run_and_kill(folder: Path, env: dict[str, str], chance: random.Random) -> bool:
    """Kill the recipe after a random line and a moment; False if it ended before.

    `start_ludus` kills it with -9 at the end of its block.
    """
    lines = chance.randrange(1, LINES)
    with start_ludus(*COMMAND, cwd=folder, env=env) as process:
        assert process.stderr is not None
        for _ in range(lines):
            if not process.stderr.readline():
                process.communicate()
                assert process.returncode == 0
                return False
        time.sleep(chance.random() / 2)
    return True


def visible_files(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in found if not path.name.startswith(".")}


def episodes(folder: Path, run: str) -> dict[str, Any]:
    """Episodes by id, without times and without log-probabilities, whose rounding depends on what
    was decoded in the same batch."""
    read = map(json.loads, (folder / run / "episodes.jsonl").read_text().splitlines())
    played = {each["episode_id"]: each for each in read}
    for each in played.values():
        del each["timing"]
        (each["tokens"] or {}).pop("logprobs", None)
    return played


def check_same(undisturbed: Path, killed: Path) -> None:
    assert visible_files(undisturbed) == visible_files(killed)
    for name in ROWS:
        assert (undisturbed / name).read_bytes() == (killed / name).read_bytes(), name
    for run in ("collect", "eval/base", "eval/sft"):
        assert episodes(undisturbed, run) == episodes(killed, run)
    ours, theirs = (
        json.loads((folder / "eval/summary.json").read_bytes()) for folder in (undisturbed, killed)
    )
    assert ours["candidates"] == theirs["candidates"] and ours["complete"]
    states = [
        json.loads((folder / "recipe.json").read_bytes())["stages"]
        for folder in (undisturbed, killed)
    ]
    for before, after in zip(*(state.values() for state in states), strict=True):
        assert before["settings"] == after["settings"] and before["done"] and after["done"]


def kill_and_compare(tmp_path: Path, *, kills: int, seed: int) -> None:
    save_models(tmp_path / "cache", tmp_path)
    env = {**OFFLINE_ENV, "LUDUS_CACHE": str(tmp_path / "cache")}
    (tmp_path / "undisturbed").mkdir()
    done = run_ludus(*COMMAND, cwd=tmp_path / "undisturbed", env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") >= LINES
    folder, chance = tmp_path / "killed", random.Random(seed)
    folder.mkdir()
    killed = sum(run_and_kill(folder, env, chance) for _ in range(kills))
    assert killed >= 1
    done = run_ludus(*COMMAND, cwd=folder, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    check_same(tmp_path / "undisturbed/runs/quickstart", folder / "runs/quickstart")


@pytest.mark.timeout(900)
def test_a_kill_changes_neither_files_nor_figures(tmp_path: Path) -> None:
    kill_and_compare(tmp_path, kills=1, seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ten_kills_change_neither_files_nor_figures(tmp_path: Path, seed: int) -> None:
    kill_and_compare(tmp_path, kills=10, seed=seed)
