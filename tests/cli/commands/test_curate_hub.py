"""A curated data set on the Hub, and what comes back from there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import load_dataset
from publish.fake_hub import TOKEN, FakeHub, fake_hub

from cli.collect_cli import error_line
from cli.curate_cli import curate, make_episode, read_rows, stdout_of, write_run

EPISODES = tuple(
    make_episode(f"n{number}", task=f"word{number} on page {number * 7}", turns=1 + number % 3)
    for number in range(12)
)


def logged_in(hub: FakeHub, home: Path) -> dict[str, str]:
    return {
        **{"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(home / "home")},
        "HF_HUB_OFFLINE": "0",
    }


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_rows_are_uploaded_with_their_card_and_load_unchanged(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = write_run(tmp_path / "run", *EPISODES), tmp_path / "data"
    with fake_hub() as hub:
        command = (run, "--test-size", "0.3", "--format", format, "-o", data, "-H", "ada/words")
        output = stdout_of(curate(*command, env=logged_in(hub, tmp_path)))
    assert output.endswith(f"Data set: {hub.url}/datasets/ada/words\n")
    assert hub.files == {file.name: file.read_bytes() for file in data.iterdir()}
    assert {"README.md", "curation.json", f"train.{format}", f"test.{format}"} == hub.files.keys()
    assert not any(TOKEN.encode() in content for content in hub.files.values())

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    pulled = hub.write_to(tmp_path / "pulled")
    found = load_dataset(str(pulled), cache_dir=str(tmp_path / "cache"))
    assert {side: len(found[side]) for side in found} == json.loads(hub.files["curation.json"])[
        "report"
    ]["rows"]
    row = found["train"][0]
    assert row["messages"][2]["tool_calls"][0]["function"]["name"] == "guess"
    if format == "jsonl":
        assert list(found["train"]) == read_rows(data)


def test_a_failed_upload_keeps_the_data_set_and_prints_the_retry_command(tmp_path: Path) -> None:
    run, data = write_run(tmp_path / "run", *EPISODES), tmp_path / "data"
    with fake_hub(fail={"commit": 500}) as hub:
        done = curate(run, "-o", data, "-H", "ada/words", env=logged_in(hub, tmp_path))
    output = error_line(done)
    assert "HTTP 500" in output and str(data) in output and TOKEN not in output
    again = output.partition("ludus curate ")[2].split()
    assert again[-1] == "--overwrite" and len(read_rows(data)) == 12
    with fake_hub() as hub:
        stdout_of(curate(*again, env=logged_in(hub, tmp_path)))
    assert hub.files["train.jsonl"] == (data / "train.jsonl").read_bytes()


def test_private_creates_a_private_repo(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *EPISODES)
    with fake_hub() as hub:
        command = (run, "-o", tmp_path / "data", "-H", "ada/words:private", "--json")
        output = stdout_of(curate(*command, env=logged_in(hub, tmp_path)))
    report, pushed = (json.loads(line) for line in output.splitlines())
    assert report["rows"] == {"train": 12}
    assert pushed == {"event": "pushed", "url": f"{hub.url}/datasets/ada/words"}
    assert hub.repos == {"ada/words": True}
