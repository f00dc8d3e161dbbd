"""Loading of training data from folders, files and the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.train.data.rows import parse_conversations
from ludus.train.data.training_data import TrainingData, open_data
from train.sample_rows import chat_messages, sft_data, sft_row, write_jsonl


def numbered_rows(data: TrainingData) -> list[tuple[int, Any]]:
    return list(data.train.rows())


def conversations(data: TrainingData) -> list[Any]:
    return [parse_conversations(row, "sft") for _, row in numbered_rows(data)]


def test_a_curated_folder_has_a_training_and_a_test_split(tmp_path: Path) -> None:
    data = open_data(sft_data(tmp_path, rows=5, test=2))
    assert [number for number, _ in numbered_rows(data)] == [1, 2, 3, 4, 5]
    assert data.test is not None and len(list(data.test.rows())) == 2


def test_blank_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"\n{json.dumps(sft_row(1))}\n\n{json.dumps(sft_row(2))}")
    data = open_data(file)
    assert [number for number, _ in numbered_rows(data)] == [2, 4]
    assert data.train.location(4) == f"{file}:4"


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, file_format: Any) -> None:
    from datasets import Json, List, load_dataset

    rows = [{**sft_row(n), "environment": "e", "group_id": "g", "episode_id": str(n)}
            | {"reward": 1.0} for n in range(4)]  # fmt: skip
    expected = conversations(open_data(write_jsonl(tmp_path / "plain.jsonl", rows)))
    folder = write_jsonl(tmp_path / "made" / "train.jsonl", rows).parent
    if file_format != "jsonl":
        loaded = load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))["train"]
        loaded = loaded.cast_column("messages", List(Json())).cast_column("tools", List(Json()))
        (folder / "train.jsonl").unlink()
        loaded.to_parquet(folder / "train.parquet")
    assert conversations(open_data(folder)) == expected
    assert open_data(folder).digest == open_data(folder).digest != ""


def test_nulls_that_arrow_adds_are_removed(tmp_path: Path) -> None:
    from datasets import Dataset

    # The arguments differ from row to row, so Arrow makes a struct of all their fields.
    Dataset.from_list([{"messages": chat_messages(1)}, {"messages": chat_messages(2)}]).to_parquet(
        tmp_path / "rows.parquet"
    )
    (conversation,) = conversations(open_data(tmp_path / "rows.parquet"))[0]
    assert conversation.messages == chat_messages(1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("./nowhere", "no data set"),
        ("nowhere.jsonl", "no data set"),
        ("notes.txt", "neither .jsonl nor .parquet"),
        ("empty", "no train.jsonl"),
        ("collected", "ludus curate"),
        ("torn.parquet", "as Parquet"),
    ],
)
def test_what_is_no_data_set_raises_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").touch()
    Path("torn.parquet").write_bytes(b"PAR1")
    Path("empty").mkdir()
    write_jsonl(Path("collected/episodes.jsonl"), [])
    with pytest.raises(ConfigError, match=reason) as raised:
        open_data(name)
    assert "\n" not in str(raised.value)


def test_a_hub_name_may_contain_a_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"org/rows\.v1 .*Hub"):
        open_data("org/rows.v1")
