"""A curated data set on the Hub, and what comes back from there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import load_dataset
from publish.fake_hub import TOKEN, FakeHub, fake_hub

from cli.curate_cli import curate, ludus, make_episode, read_rows, stdout_of, write_run

EPISODES = tuple(
    make_episode(f"n{number}", task=f"word{number} on page {number * 7}", turns=1 + number % 3)
    for number in range(12)
)


def logged_in(hub: FakeHub, home: Path) -> dict[str, str]:
    return {
        **{"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(home / "home")},
        "HF_HUB_OFFLINE": "0",
    }


def test_rows_are_uploaded_with_their_card_and_load_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = write_run(tmp_path / "run", *EPISODES), tmp_path / "data"
    with fake_hub() as hub:
        stdout_of(curate(run, "--test-size", "0.3", "-o", data))
        push = ("push", "dataset", data, "ada/words")
        output = stdout_of(ludus(*push, env=logged_in(hub, tmp_path)))
    assert output.endswith(f"Data set: {hub.url}/datasets/ada/words\n")
    assert hub.files == {file.name: file.read_bytes() for file in data.iterdir()}
    assert {"README.md", "curation.json", "train.jsonl", "test.jsonl"} == hub.files.keys()
    assert not any(TOKEN.encode() in content for content in hub.files.values())

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    pulled = hub.write_to(tmp_path / "pulled")
    found = load_dataset(str(pulled), cache_dir=str(tmp_path / "cache"))
    assert {side: len(found[side]) for side in found} == json.loads(hub.files["curation.json"])[
        "report"
    ]["rows"]
    row = found["train"][0]
    assert row["messages"][2]["tool_calls"][0]["function"]["name"] == "guess"
    assert list(found["train"]) == read_rows(data)
