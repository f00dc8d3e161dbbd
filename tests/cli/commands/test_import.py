"""`ludus import`: files of other tools as runs, and round trips."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from curation.formats.gym_lines import TOOL as GYM_TOOL
from curation.formats.gym_lines import (
    call_item,
    message_item,
    output_item,
    rollout,
    system,
    user,
    write_lines,
)
from curation.formats.openenv_records import collect_with_openenv

from cli.collect_cli import error_line, read_episodes
from cli.curate_cli import curate, ludus, make_episode, read_rows, stdout_of, write_run
from ludus.curation.formats.run_import import import_files
from ludus.data.episode import Episode
from ludus.errors import RunError


def run_import(*arguments: str | Path, **more: Any) -> Any:
    return ludus("import", *arguments, **more)


def write_gym_file(folder: Path) -> Path:
    """Two attempts at one task, with a call and its answer."""
    asked = [system("Look words up."), user("What is an owl?")]
    lines = [
        rollout(
            asked,
            [call_item("c1"), output_item("c1"), message_item(f"It is {what}.")],
            asked={"tools": [GYM_TOOL]},
            reward=reward,
        )
        for what, reward in (("a bird", 1.0), ("a fish", 0.25))
    ]
    return write_lines(folder / "rollouts.jsonl", *lines)


def write_message_rows(folder: Path) -> Path:
    path = folder / "talk.jsonl"
    output = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    path.write_text(json.dumps({"messages": output, "reward": 1.0}) + "\n")
    return path


def write_source(format: str, folder: Path) -> Path:
    if format == "openenv":
        return collect_with_openenv(folder / "openenv", ["one", "two"])
    return write_gym_file(folder) if format == "nemo-gym" else write_message_rows(folder)


def conversations(episodes: list[Episode]) -> list[Any]:
    """The parts of episodes that a round trip must not change."""
    return [(each.messages, each.tools, each.reward, each.rewards) for each in episodes]


@pytest.mark.parametrize("format", ["openenv", "nemo-gym", "messages"])
def test_imported_rollouts_are_a_run_for_every_command(format: str, tmp_path: Path) -> None:
    report = json.loads(
        stdout_of(run_import(format, write_source(format, tmp_path), "--json", cwd=tmp_path))
    )
    run = tmp_path / report["folder"]
    assert run.parent == tmp_path / "runs" and run.name.startswith(f"{format}-")
    episodes = read_episodes(run)
    assert len(episodes) == report["episodes"] > 0 and report["unreadable"] == 0
    assert report["scored"] == sum(each.reward is not None for each in episodes)

    assert f"runs/{run.name}" in stdout_of(ludus("runs", cwd=tmp_path))
    first = next(each for each in episodes if each.reward is not None)
    shown = stdout_of(ludus("show", run, first.episode_id))
    reply = next(each.text for each in first.messages if each.role == "assistant" and each.text)
    assert reply.splitlines()[0] in shown
    stdout_of(curate(run, "-o", tmp_path / "data"))
    assert first.episode_id in {row["episode_id"] for row in read_rows(tmp_path / "data")}


@pytest.mark.parametrize("format", ["openenv", "nemo-gym"])
def test_a_file_survives_import_and_export(format: str, tmp_path: Path) -> None:
    first, data, again = tmp_path / "first", tmp_path / "data", tmp_path / "again"
    stdout_of(run_import(format, write_source(format, tmp_path), "-o", first))
    stdout_of(curate(first, "--to", format, "-o", data))
    stdout_of(run_import(format, data / "train.jsonl", "-o", again))
    assert conversations(read_episodes(again)) == conversations(read_episodes(first)) != []
    assert read_episodes(again) == read_episodes(first)


@pytest.mark.parametrize("format", ["openenv", "nemo-gym"])
def test_episodes_survive_export_and_import(format: str, tmp_path: Path) -> None:
    attempts = [
        make_episode("a", rewards={"letters": 0.5, "word": 0.5}, seed=3),
        make_episode("b", reward=0.0, turns=3, stop_reason="max_turns", done=False),
    ]
    run, data = write_run(tmp_path / "run", *attempts), tmp_path / "data"
    stdout_of(curate(run, "--to", format, "-o", data))
    stdout_of(run_import(format, data / "train.jsonl", "-o", tmp_path / "again"))
    assert read_episodes(tmp_path / "again") == attempts


def test_nemo_gym_input_has_one_line_per_task(tmp_path: Path) -> None:
    attempts = [make_episode("a"), make_episode("b", reward=0.0), make_episode("c", task="fox")]
    run, data = write_run(tmp_path / "run", *attempts), tmp_path / "data"
    stdout_of(curate(run, "--to", "nemo-gym-input", "-o", data))
    assert [row["about"] for row in read_rows(data)] == ["owl", "fox"]
    assert all("response" not in row for row in read_rows(data))
    done = run_import("nemo-gym", data / "train.jsonl", "-o", tmp_path / "again")
    assert "no episode" in error_line(done)


def test_unreadable_lines_are_listed_and_the_rest_is_imported(tmp_path: Path) -> None:
    path = write_message_rows(tmp_path)
    with path.open("a") as file:
        file.write('{"a": 1}\nnonsense\n' + "[]\n" * 12)
    done = run_import("messages", path, "-o", tmp_path / "run")
    assert done.returncode == 0
    assert re.findall(r"\d+", done.stdout.splitlines()[0]) == ["1", "1", "14"]
    output = done.stderr.splitlines()
    assert output[0].startswith(f"not read: {path}:2: ")
    assert output[1].startswith(f"not read: {path}:3: ")
    assert output[-1] == f"and 4 more: {tmp_path / 'run' / 'unreadable.txt'}"
    assert len((tmp_path / "run/unreadable.txt").read_text().splitlines()) == 14


def test_skipped_files_of_a_folder_are_listed(tmp_path: Path) -> None:
    write_message_rows(tmp_path)
    write_gym_file(tmp_path)
    done = run_import("nemo-gym", tmp_path, "-o", tmp_path / "out/run")
    assert done.returncode == 0 and "talk.jsonl" in done.stderr
    assert len(read_episodes(tmp_path / "out/run")) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("messages", "nowhere.jsonl"), "nowhere.jsonl"),
        (("messages", "empty.jsonl"), "empty"),
        (("messages", "thesis.tex"), "thesis.tex:1"),
        (("messages", "folder"), ".jsonl"),
        (("openenv", "folder"), "results.jsonl"),
        (("messages", "talk.jsonl", "talk.jsonl"), "talk.jsonl"),
        (("messages", "talk.jsonl", "-o", "folder"), "folder"),
        (("messages", "talk.jsonl", "-o", "thesis.tex"), "thesis.tex"),
    ],
)
def test_invalid_options_print_one_line_and_write_nothing(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    write_message_rows(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "thesis.tex").write_text("Years of work.\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert words in error_line(run_import(*arguments, cwd=tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    done = run_import("mesages", write_message_rows(tmp_path))
    assert done.returncode == 2 and '"nemo-gym", "messages"' in done.stderr.splitlines()[-1]


def test_import_can_write_into_the_source_folder(tmp_path: Path) -> None:
    path, here = write_message_rows(tmp_path), tmp_path / "here"
    here.mkdir()
    stdout_of(run_import("messages", path, "-o", ".", cwd=here))
    assert len(read_episodes(here)) == 1 and (here / "run.json").is_file()


def test_two_imports_get_different_names(tmp_path: Path) -> None:
    path = write_message_rows(tmp_path)
    for name in ("messages-talk", "messages-talk-2"):
        assert f"run: runs/{name}" in stdout_of(run_import("messages", path, cwd=tmp_path))
        assert len(read_episodes(tmp_path / "runs" / name)) == 1


def test_a_second_import_into_the_same_folder_raises(tmp_path: Path) -> None:
    source, out, refused = write_message_rows(tmp_path), tmp_path / "run", []

    def import_again(done: int) -> None:
        with pytest.raises(RunError, match="Another process is writing") as error:
            import_files("messages", [source], out)
        refused.append(error)

    assert import_files("messages", [source], out, progress=import_again).episodes == 1
    assert refused and len(read_episodes(out)) == 1
    with pytest.raises(RunError, match="not empty"):
        import_files("messages", [source], out)
