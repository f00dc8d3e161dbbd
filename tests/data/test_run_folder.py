"""Run folders: begun, taken up again, refused, found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.data.config import config_digest
from ludus.data.run_folder import RunFolder, find_runs, find_unused_dir
from ludus.errors import RunError

SETTINGS = {"model": "small", "temperature": 0.2, "sampling": {"top_p": 0.9, "stop": ["a", "b"]}}


def refusal(path: Path, settings: dict[str, Any]) -> list[str]:
    """The lines in which these settings are refused."""
    with pytest.raises(RunError) as caught:
        RunFolder.resume_or_create(path, settings)
    return str(caught.value).splitlines()


def test_a_run_is_taken_up_again_with_the_same_settings(tmp_path: Path) -> None:
    made = RunFolder.resume_or_create(tmp_path / "a" / "b", SETTINGS)
    text = (made.path / "run.json").read_text()
    again = RunFolder.resume_or_create(tmp_path / "a" / "b", dict(reversed(SETTINGS.items())))
    assert again == made == RunFolder.open(tmp_path / "a" / "b")
    assert (made.path / "run.json").read_text() == text
    assert [file.name for file in made.path.iterdir()] == ["run.json"]


def test_run_json_says_what_was_run(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", {"prompt": "größer"})
    text = (tmp_path / "r" / "run.json").read_text()
    said = json.loads(text)
    assert "größer" in text
    assert (said["version"], said["kind"]) == (1, "collect")
    assert (said["settings"], said["digest"]) == (
        {"prompt": "größer"},
        config_digest({"prompt": "größer"}),
    )
    assert said["created_at"].endswith("+00:00")
    assert said["versions"].keys() == {"ludus", "python"}


def test_a_digest_is_of_what_is_set_and_not_of_how_it_is_written() -> None:
    assert config_digest({"a": 1, "b": (2, 3)}) == config_digest({"b": [2, 3], "a": 1.0})
    different: list[dict[str, Any]] = [
        {"a": 1},
        {"a": True},
        {"a": "1"},
        {"a": None},
        {"a": 1.5},
        {"b": 1},
        {},
    ]
    assert len({config_digest(settings) for settings in different}) == len(different)


def test_digests_stay_the_same_so_that_old_runs_can_be_taken_up() -> None:
    assert config_digest({"model": "small", "temperature": 0.2, "n": 1.0, "s": "ü"}) == "5d97478f"


def test_other_settings_are_refused_one_by_one(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", SETTINGS)
    changed = {"temperature": 0.7, "sampling": {"top_p": 0.9, "stop": ["a"]}, "seed": 3}
    first, *differences, advice = refusal(tmp_path / "r", changed)
    assert str(tmp_path / "r") in first
    model, stop, seed, temperature = differences
    assert model.startswith('  model: "small" there, ')
    assert stop == '  sampling.stop: ["a", "b"] there, ["a"] here'
    assert seed.startswith("  seed: ") and seed.endswith(" 3 here")
    assert temperature == "  temperature: 0.2 there, 0.7 here"
    assert "`resume=False`" in advice and "`out`" in advice


def test_long_settings_are_shown_where_they_differ(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", {"prompt": "x" * 500 + " be brief. " + "y" * 500})
    line = refusal(tmp_path / "r", {"prompt": "x" * 500 + " be thorough. " + "y" * 500})[1]
    assert "xx be brief. yy" in line
    assert "xx be thorough. yy" in line
    assert len(line) < 180


def test_a_short_list_of_many_differences(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", {f"key{number:03}": number for number in range(100)})
    said = refusal(tmp_path / "r", {})
    assert said[1].startswith("  key000: 0 there, ")
    assert said[-2] == "  and 80 more"


def test_an_edited_run_json_is_reported(tmp_path: Path) -> None:
    file = RunFolder.create(tmp_path / "r", SETTINGS).path / "run.json"
    file.write_text(file.read_text().replace("0.2", "0.7"))
    assert "edited" in refusal(tmp_path / "r", SETTINGS | {"temperature": 0.7})[1]


def test_a_run_of_another_kind_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", SETTINGS, kind="evaluate")
    (message,) = refusal(tmp_path / "r", SETTINGS)
    assert "evaluate" in message and "collect" in message


@pytest.mark.parametrize("name", ["episodes.jsonl", "notes.txt", ".git"])
def test_a_folder_with_other_files_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert f"({name})" in refusal(tmp_path, SETTINGS)[0]
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_draft_of_a_killed_process_does_not_count_as_a_file(tmp_path: Path) -> None:
    (tmp_path / ".run.json.123.draft").write_text("{")
    assert RunFolder.resume_or_create(tmp_path, SETTINGS).metadata.settings == SETTINGS


def test_a_run_is_never_begun_over_another(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "r", SETTINGS)
    with pytest.raises(RunError, match="holds a run already"):
        RunFolder.create(tmp_path / "r", SETTINGS | {"temperature": 0.7})
    assert RunFolder.open(tmp_path / "r") == first


def test_a_file_where_the_folder_should_be_is_a_run_error(tmp_path: Path) -> None:
    (tmp_path / "r").touch()
    assert "is a file" in refusal(tmp_path / "r", SETTINGS)[0]
    assert "Not a directory" in refusal(tmp_path / "r" / "below", SETTINGS)[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"version": 2}', "version 2"),
        ('{"version": 1, "created_at": "now"}', "created_at"),
    ],
)
def test_a_run_json_that_cannot_be_read_is_a_run_error(
    text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_text(text)
    message = refusal(tmp_path, SETTINGS)[0]
    assert "run.json" in message and says in message


def test_a_folder_without_a_run_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"run\.json"):
        RunFolder.open(tmp_path / "nowhere")


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), object(), "\ud800"])
def test_what_json_cannot_say_gets_into_no_file(odd: Any, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "r", SETTINGS)
    run.write_summary({"mean": 0.5})
    with pytest.raises(RunError, match="JSON"):
        run.write_summary({"mean": odd})
    assert run.read_summary() == {"mean": 0.5}
    with pytest.raises(RunError, match="JSON"):
        RunFolder.create(tmp_path / "other", {"odd": odd})
    assert not (tmp_path / "other").exists()


def test_a_summary_is_replaced_whole(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "r", SETTINGS)
    assert run.read_summary() == {}
    run.write_summary({"mean": 0.5})
    run.write_summary({"mean": None})
    assert run.read_summary() == {"mean": None}
    assert sorted(file.name for file in run.path.iterdir()) == ["run.json", "summary.json"]


def test_a_new_run_beside_others_gets_the_first_free_name(tmp_path: Path) -> None:
    wanted = tmp_path / "runs" / "wordle"
    for name in ("wordle", "wordle-2", "wordle-3"):
        assert find_unused_dir(wanted).name == name
        find_unused_dir(wanted).mkdir(parents=True)
    (tmp_path / "runs" / "wordle-2").rmdir()
    assert find_unused_dir(wanted).name == "wordle-2"


def test_beside_here_is_beside_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert find_unused_dir(Path()) == tmp_path / "here-2"


def test_runs_are_found_oldest_first_and_once(tmp_path: Path) -> None:
    for year, where in [(2023, "z"), (2022, "a/b/c"), (2021, "a"), (2024, "a/b/c/d"), (2020, ".x")]:
        RunFolder.create(tmp_path / "new", {})
        file = tmp_path / "new" / "run.json"
        said = json.loads(file.read_text()) | {"created_at": f"{year}-01-01T00:00:00Z"}
        file.unlink()
        target = tmp_path / "runs" / where
        target.mkdir(parents=True, exist_ok=True)
        (target / "run.json").write_text(json.dumps(said))
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "other").mkdir()
    (tmp_path / "runs" / "other" / "run.json").write_text('{"of": "another tool"}')

    found = [str(run.path.relative_to(tmp_path / "runs")) for run in find_runs(tmp_path / "runs")]
    assert found == ["a", "a/b/c", "z"]
    assert [run.path for run in find_runs(tmp_path / "runs" / "z")] == [tmp_path / "runs" / "z"]
    assert find_runs(tmp_path / "nowhere") == []
