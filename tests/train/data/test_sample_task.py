"""The task on a model card is one that the model was trained on."""

from __future__ import annotations

import json
from pathlib import Path

from ludus.train.data.loading import JsonlRows, open_data
from ludus.train.data.sample_task import MAX_TASK_CHARS, sample_episode_task, sample_row_task
from train.sample_rows import TOOLS, chat_messages, dpo_row, sft_row, write_jsonl


def test_it_is_the_shortest_of_the_first_rows(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "train.jsonl", [sft_row(100), sft_row(3), sft_row(20)])
    task = sample_row_task(JsonlRows(file), "sft")
    assert task is not None
    assert task.messages == (chat_messages(3)[0],) and list(task.tools) == TOOLS


def test_a_pair_has_one_task(tmp_path: Path) -> None:
    task = sample_row_task(JsonlRows(write_jsonl(tmp_path / "train.jsonl", [dpo_row(3)])), "dpo")
    assert task is not None and task.messages == (chat_messages(3)[0],)


def test_long_tasks_and_tasks_with_images_are_left_out(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    answer = {"role": "assistant", "content": "Yes."}
    rows = [
        {"messages": [{"role": "user", "content": content}, answer]}
        for content in ("a" * MAX_TASK_CHARS, [image])
    ]
    assert sample_row_task(JsonlRows(write_jsonl(tmp_path / "train.jsonl", rows)), "sft") is None
    assert sample_episode_task(tmp_path / "none.jsonl") is None


def test_reset_arguments_are_those_of_the_runs(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data" / "train.jsonl", [sft_row(1)])
    task = {"length": 6}
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        run = json.dumps({"settings": {"task": task}})
        (tmp_path / name / "run.json").write_text(run, encoding="utf-8")
    runs = [str(tmp_path / name) for name in ("one", "other")]
    curation = tmp_path / "data" / "curation.json"
    curation.write_text(json.dumps({"runs": runs}), encoding="utf-8")
    assert open_data(tmp_path / "data").task == task
    curation.write_text(json.dumps({"runs": [*runs, str(tmp_path / "gone")]}), encoding="utf-8")
    assert open_data(tmp_path / "data").task == {}
