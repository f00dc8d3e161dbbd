"""Pushed runs loaded with `load_dataset`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset

from ludus.data.episode import Episode
from ludus.publish.run_card import card_for_run
from publish.sample_episodes import (
    broken_episode,
    episode,
    image_episode,
    long_episode,
    run_folder,
    token_episode,
    wordle_episode,
)

RUNS: dict[str, list[Episode]] = {
    "reasoning_gym": [episode(1), episode(2)],
    "wordle": [wordle_episode(1), wordle_episode(2)],
    "a mix": [episode(1), wordle_episode(2)],
    "pictures": [episode(1), image_episode(2)],
    "nothing but pictures": [image_episode(1)],
    "a broken one": [episode(1), broken_episode(2)],
    "nothing but broken ones": [broken_episode(1), broken_episode(2)],
    "tokens": [episode(1), token_episode(2)],
    "something new after ten megabytes": [
        *map(long_episode, range(11)),
        wordle_episode(11),
        image_episode(12),
        broken_episode(13),
        token_episode(14),
    ],
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("episodes", RUNS.values(), ids=list(RUNS))
def test_rows_round_trip(episodes: list[Episode], tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "data", *episodes)
    (folder / "README.md").write_text(card_for_run(folder, "ada/data"))
    rows = list(load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache")))
    written = [json.loads(each.to_line()) for each in episodes]
    assert [row["messages"] for row in rows] == [row["messages"] for row in written]
    assert [row["reward"] for row in rows] == [row["reward"] for row in written]
    assert [without_nones(row) for row in rows] == [without_nones(row) for row in written]


def without_nones(value: Any) -> Any:
    """Without the keys that `datasets` fills in."""
    if not isinstance(value, dict):
        return value
    kept = {key: without_nones(part) for key, part in value.items() if part is not None}
    return kept or None
