from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.train.data.loading import TrainingData, open_data
from ludus.train.data.row_schema import InvalidRow, parse_conversations
from train.lessons import TOOLS, call, dpo_row, sft_data, sft_row, talk, write


def rows_of(data: TrainingData) -> list[tuple[int, Any]]:
    return [row for batch in data.train.batches(3) for row in batch]


def read(data: TrainingData) -> list[Any]:
    return [parse_conversations(row, "sft") for _, row in rows_of(data)]


def test_a_curated_folder_has_rows_to_train_on_and_to_test(tmp_path: Path) -> None:
    data = open_data(sft_data(tmp_path, rows=5, test=2))
    assert [number for number, _ in rows_of(data)] == [1, 2, 3, 4, 5]
    assert data.test is not None and len(next(data.test.batches(9))) == 2


def test_blank_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"\n{json.dumps(sft_row(1))}\n\n{json.dumps(sft_row(2))}")
    data = open_data(file)
    assert [number for number, _ in rows_of(data)] == [2, 4]
    assert data.train.location(4) == f"{file}:4"


@pytest.mark.parametrize("form", ["jsonl", "parquet", "datasets"])
def test_every_form_that_curate_writes_gives_the_same_rows(tmp_path: Path, form: Any) -> None:
    from ludus.curation.file_formats import convert_files

    rows = [{**sft_row(n), "environment": "e", "group_id": "g", "episode_id": str(n)}
            | {"reward": 1.0} for n in range(4)]  # fmt: skip
    plain = read(open_data(write(tmp_path / "plain.jsonl", rows)))
    folder = write(tmp_path / "made" / "train.jsonl", rows).parent
    convert_files(folder, ["train"], form, "sft", tmp_path / "work")
    assert read(open_data(folder)) == plain
    assert open_data(folder).digest == open_data(folder).digest != ""


def test_nulls_with_which_arrow_fills_up_are_not_part_of_a_row(tmp_path: Path) -> None:
    from datasets import Dataset

    # As somebody writes them who does not know that arguments differ from row to row.
    Dataset.from_list([{"messages": talk(1)}, {"messages": talk(2)}]).to_parquet(
        tmp_path / "rows.parquet"
    )
    (found,) = read(open_data(tmp_path / "rows.parquet"))[0]
    assert found.messages == talk(1)


def test_what_curating_measured_counts_for_that_model_alone(tmp_path: Path) -> None:
    lengths = {"student": "org/small", "max_length": 640}
    sft_data(tmp_path)
    (tmp_path / "curation.json").write_text(json.dumps({"report": {"lengths": lengths}}))
    data = open_data(tmp_path)
    assert data.measured_max_length("org/small") == 640
    assert data.measured_max_length("org/other") is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./nowhere", "There is no data set"),
        ("nowhere.jsonl", "There is no data set"),
        ("notes.txt", "neither .jsonl nor .parquet"),
        ("empty", "holds no train.jsonl"),
        ("played", "Make them first: ludus curate"),
        ("torn.parquet", "cannot be read as Parquet"),
        ("broken", "cannot be read as a folder of datasets"),
    ],
)
def test_what_is_no_data_set_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").touch()
    Path("torn.parquet").write_bytes(b"PAR1")
    Path("empty").mkdir()
    write(Path("played/episodes.jsonl"), [])
    write(Path("broken/dataset_dict.json"), [{"splits": ["train"]}])
    with pytest.raises(ConfigError, match=said) as raised:
        open_data(name)
    assert "\n" not in str(raised.value)


def test_a_dot_in_its_name_makes_a_data_set_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"the data set org/rows\.v1 on the Hub cannot be read"):
        open_data("org/rows.v1")


def test_a_prompt_given_apart_bears_no_loss() -> None:
    said = talk(1)
    (found,) = parse_conversations({"prompt": said[:3], "completion": said[3:]}, "sft")
    assert (found.messages, found.num_prompt_messages) == (said, 3)


def test_a_pair_without_a_prompt_has_what_both_begin_with() -> None:
    row = dpo_row(1)
    whole = {side: [*row["prompt"], *row[side]] for side in ("chosen", "rejected")}
    found = parse_conversations(whole, "dpo")
    assert [side.num_prompt_messages for side in found] == [3, 3]
    assert [side.messages for side in found] == [whole["chosen"], whole["rejected"]]


def test_arguments_and_tools_may_come_as_text() -> None:
    row = sft_row(1)
    function = row["messages"][1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])
    (found,) = parse_conversations({**row, "tools": json.dumps(TOOLS)}, "sft")
    assert found.tools == TOOLS
    assert found.messages[1]["tool_calls"] == call(11)["tool_calls"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"{", "is no JSON"),
        (b"[]", "is no JSON object"),
        ({"text": "x"}, "its columns are text"),
        ({"messages": []}, "has no messages in `messages`"),
        ({"messages": [{"content": "x"}]}, "no message with a `role`"),
        ({"prompt": "x", "completion": "y"}, "text in `prompt`"),
        ({"messages": talk(1), "tools": {"a": 1}}, "no list of tools"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "without a `name`"),
    ],
)
def test_a_row_that_is_none_says_what_is_wrong(row: Any, said: str) -> None:
    with pytest.raises(InvalidRow, match=said):
        parse_conversations(row, "sft")


def test_rows_of_the_other_kind_name_the_other_command() -> None:
    with pytest.raises(ConfigError, match="`ludus train dpo`"):
        parse_conversations(dpo_row(1), "sft")
    with pytest.raises(ConfigError, match="`ludus train sft`"):
        parse_conversations(sft_row(1), "dpo")
