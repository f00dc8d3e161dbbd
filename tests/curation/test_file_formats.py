"""Data sets load as the rows of their JSONL files: the card declares the columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from curation.attempts import (
    GUESS,
    attempt,
    call,
    curate_episodes,
    model,
    read_rows,
    tool_result,
    user,
    write_run,
)
from ludus.curation import CurateConfig, curate
from ludus.data.episode import OMITTED_IF_EMPTY, Episode, StopReason

LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look around.",
        "parameters": {"type": "object", "properties": {"at": {"enum": ["left", 3, None]}}},
    },
}


def played(name: str, reward: float, *, task: str) -> Episode:
    """Calls of two tools, whose arguments have nothing in common."""
    deep = call("look", {"at": {"x": [1, 2.5, None]}, "word": 42}, "b")
    return attempt(
        name,
        reward,
        task=task,
        tools=(GUESS, LOOK),
        messages=(
            user("Guess."),
            model("42", call("guess", {"word": name}, "a"), deep, reasoning="null"),
            tool_result("no", "a"),
            tool_result("[]", "b"),
            model("Käse 🧀"),
        ),
    )


EPISODES = [
    *(played(f"{task}{reward}", reward, task=task) for task in "stu" for reward in (0.25, 1.0)),
    attempt("plain", 0.5, task="v"),
    attempt("plain too", 0.125, task="v"),
]
KINDS: list[dict[str, Any]] = [
    {"to": "sft"},
    {"to": "dpo"},
    {"to": "episodes"},
]


def names(kind: dict[str, Any]) -> str:
    return "-".join(str(value) for value in kind.values())[:24]


@pytest.fixture(autouse=True)
def _quiet_and_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def jsonl(folder: Path, **how: Any) -> dict[str, list[dict[str, Any]]]:
    curate_episodes(folder, *EPISODES, test_size=0.4, **how)
    return {side: read_rows(folder / "out" / f"{side}.jsonl") for side in ("train", "test")}


def stored(rows: Any) -> list[dict[str, Any]]:
    """Rows as their lines have them: without the fields that are omitted where they are empty."""
    return [
        {
            name: value
            for name, value in row.items()
            if name not in OMITTED_IF_EMPTY or value is not None
        }
        for row in rows
    ]


@pytest.mark.parametrize("kind", KINDS, ids=names)
def test_a_folder_of_jsonl_loads_by_its_card(tmp_path: Path, kind: dict[str, Any]) -> None:
    expected = jsonl(tmp_path, **kind)
    loaded = datasets.load_dataset(str(tmp_path / "out"))
    assert {side: stored(loaded[side]) for side in loaded} == expected
    assert all(expected.values())


def test_arguments_of_different_tools_are_not_merged(tmp_path: Path) -> None:
    curate_episodes(tmp_path, *EPISODES)
    loaded = datasets.load_dataset(str(tmp_path / "out"))["train"]
    calls = loaded[0]["messages"][1]["tool_calls"]
    assert [each["function"]["arguments"] for each in calls] == [
        {"word": "s0.25"},
        {"at": {"x": [1, 2.5, None]}, "word": 42},
    ]
    assert loaded[0]["messages"][0] == {"role": "user", "content": "Guess."}


def test_columns_that_first_occur_in_the_last_row_are_declared(tmp_path: Path) -> None:
    late = attempt("z", None, task="w", stop_reason=StopReason.BROKEN, seed=3, messages=())
    expected = [json.loads(episode.to_line()) for episode in EPISODES]
    curate_episodes(tmp_path, *EPISODES, attempt("y", 0.5, seed=3), to="episodes")
    loaded = datasets.load_dataset(str(tmp_path / "out"))["train"]
    assert stored(loaded)[:-1] == expected and loaded[-1]["seed"] == 3
    report = curate_episodes(tmp_path / "again", *EPISODES, late, to="episodes")
    assert report.left_out == {"broken": 1}


def test_an_empty_split_is_an_empty_file(tmp_path: Path) -> None:
    """Its only episode turned out to be unusable when the row was built."""
    torn = model("", call("f", "{"))
    some = [attempt(name, messages=(user(f"What is {name}?"), torn)) for name in "ab"]
    fine = [attempt(name) for name in "cd"]
    for number, episodes in enumerate(([some[0], fine[1]], [fine[0], some[1]])):
        report = curate_episodes(tmp_path / str(number), *episodes, test_size=0.5)
        assert sum(report.rows.values()) == 1 and report.left_out == {"malformed call": 1}


def test_an_overwritten_data_set_is_not_loaded_from_the_cache(tmp_path: Path) -> None:
    cache, replies = tmp_path / "cache", []
    for folder, words in (("a", "one"), ("a", "two"), ("b", "three")):
        episode = attempt("x", messages=(user("Say it."), model(words)))
        out = tmp_path / folder / "out"
        curate([write_run(tmp_path / words, episode)], out, CurateConfig(), overwrite=True)
        loaded = datasets.load_dataset(str(out), split="train", cache_dir=str(cache))
        replies.append(loaded[0]["messages"][-1]["content"])
    assert replies == ["one", "two", "three"]
