"""What `load_dataset` makes of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset

from ludus.data.episode import Episode
from ludus.publish.run_card import card_for_run
from publish.sample import (
    episode,
    long,
    of_wordle,
    run_folder,
    that_broke,
    with_pictures,
    with_tokens,
)

RUNS: dict[str, list[Episode]] = {
    "reasoning_gym": [episode(1), episode(2)],
    "wordle": [of_wordle(1), of_wordle(2)],
    "a mix": [episode(1), of_wordle(2)],
    "pictures": [episode(1), with_pictures(2)],
    "nothing but pictures": [with_pictures(1)],
    "a broken one": [episode(1), that_broke(2)],
    "nothing but broken ones": [that_broke(1), that_broke(2)],
    "tokens": [episode(1), with_tokens(2)],
    "something new after ten megabytes": [
        *map(long, range(11)),
        of_wordle(11),
        with_pictures(12),
        that_broke(13),
        with_tokens(14),
    ],
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("episodes", RUNS.values(), ids=list(RUNS))
def test_rows_come_back_as_they_were_written(episodes: list[Episode], tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "data", *episodes)
    (folder / "README.md").write_text(card_for_run(folder, "ada/data"))
    rows = list(load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache")))
    written = [json.loads(each.to_line()) for each in episodes]
    assert [row["messages"] for row in rows] == [row["messages"] for row in written]
    assert [row["reward"] for row in rows] == [row["reward"] for row in written]
    assert [without_nothing(row) for row in rows] == [without_nothing(row) for row in written]


def without_nothing(value: Any) -> Any:
    """Without the keys that `datasets` fills in."""
    if not isinstance(value, dict):
        return value
    kept = {key: without_nothing(part) for key, part in value.items() if part is not None}
    return kept or None
