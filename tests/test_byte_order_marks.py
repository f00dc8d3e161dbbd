"""Files that a user names: with a byte-order mark, or without an end."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from curation.attempts import attempt, write_run

from ludus.agents.api_agent import read_prices
from ludus.cli.flags import read_table
from ludus.curation import CurateConfig, curate
from ludus.curation.formats.openenv import read_openenv
from ludus.curation.formats.run_import import import_files
from ludus.data import json_files
from ludus.data.episode import Episode
from ludus.data.episode_reader import episodes, read_resume_index
from ludus.envs.mcp.tasks import load_task_file
from ludus.errors import LudusError
from ludus.recipe.recipe_file import read_recipe
from ludus.rollout.plan import read_tasks
from ludus.scoring.source_run import index_episodes
from ludus.train.data.training_data import JsonlRows
from ludus.viewer.episode_index import EpisodeIndex
from ludus.viewer.episode_queries import EpisodeFilter, EpisodeQueries, read_fields
from ludus.viewer.library import find_entries

ROW = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
TASK = '{"prompt": "a", "expected": "b"}\n'
READERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "rollouts": ("a.jsonl", ROW * 2, lambda file: import_rows(file)),
    "rows": ("train.jsonl", ROW * 2, lambda file: list(JsonlRows(file).rows())),
    "tasks": ("tasks.jsonl", '{"seed": 1}\n{"seed": 2}\n', read_tasks),
    "tasks of MCP": (
        "t.toml",
        '[[tasks]]\nprompt = "a"\nexpected = "b"\n',
        lambda file: load_task_file(file).tasks,
    ),
    "tasks of MCP as JSON": ("t.json", f"[{TASK}]", lambda file: load_task_file(file).tasks),
    "tasks of MCP as JSONL": ("t.jsonl", TASK, lambda file: load_task_file(file).tasks),
    "prices": (
        "prices.json",
        '{"m": {"input": 1, "output": 2}}',
        lambda file: read_prices(file),
    ),
    "recipe": (
        "r.toml",
        '[collect]\nenv = "catch"\n',
        lambda file: [stage.options for stage in read_recipe(str(file)).stages],
    ),
    "options of a command": ("c.toml", "steps = 5\n", lambda file: read_table(str(file))),
    "metadata of a run": (
        "metadata.json",
        '{"env": "owls"}',
        lambda file: [
            isinstance(episode, Episode) and episode.environment
            for episode in read_openenv(beside(file, ROW))
        ],
    ),
}


def import_rows(file: Path) -> tuple[int, int]:
    report = import_files("messages", [file], file.parent / file.stem)
    return report.episodes, report.unreadable


def beside(file: Path, rows: str) -> Path:
    results = file.with_name("results.jsonl")
    results.write_text(rows)
    return results


@pytest.mark.parametrize("kind", READERS)
def test_a_byte_order_mark_is_no_content(tmp_path: Path, kind: str) -> None:
    name, text, read = READERS[kind]
    contents = []
    for folder, mark in (("plain", b""), ("marked", BOM_UTF8)):
        file = tmp_path / folder / name
        file.parent.mkdir()
        file.write_bytes(mark + text.encode())
        contents.append(read(file))
    assert contents[0] and contents[0] == contents[1]


@pytest.mark.parametrize("kind", [kind for kind in READERS if kind != "metadata of a run"])
def test_a_file_without_an_end_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "MAX_LINE_BYTES", 1 << 20)
    name, _, read = READERS[kind]
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(LudusError):
        read(tmp_path / name)


def test_no_episode_of_a_marked_run_is_lost_unnoticed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", attempt("one"), attempt("two"))
    journal = run / "episodes.jsonl"
    journal.write_bytes(BOM_UTF8 + journal.read_bytes())
    assert len(list(episodes(journal))) == len(index_episodes(journal)) == 2
    index = read_resume_index(journal)
    assert (index.totals.episodes, index.unreadable) == (2, 0)
    where = "run = 'run'"
    report = curate([run], tmp_path / "out", CurateConfig(to="episodes", where=where))
    assert report.unreadable == (f"{journal}:1",)
    assert [each.episode_id for each in episodes(tmp_path / "out/train.jsonl")] == ["two"]
    with EpisodeIndex() as shown:
        shown.add_entries(list(find_entries([run]).values()))
        shown.update()
        rows = EpisodeQueries(shown).page(EpisodeFilter(), 0, 9)["rows"]
        assert [row["episode_id"] for row in rows] == ["one", "two"]
        assert read_fields(shown, rows[0]["run"], 0)["episode_id"] == "one"
