"""Import of rollouts that OpenEnv's own code collected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from curation.formats.openenv_records import collect_with_openenv
from ludus.curation.formats.base import UnreadableRecord
from ludus.curation.formats.openenv import read_openenv
from ludus.curation.formats.run_import import FORMATS, find_import_files
from ludus.data.episode import Episode, StopReason
from ludus.errors import RunError


def read(folder: Path) -> list[Episode]:
    (file,) = find_import_files(FORMATS["openenv"], folder)
    records = list(read_openenv(file))
    assert not [problem for problem in records if isinstance(problem, UnreadableRecord)]
    return [one for one in records if isinstance(one, Episode)]


def line(**more: Any) -> str:
    fields = {"episode_id": "ep-0", "messages": [], "reward": 1.0, "done": True, **more}
    return json.dumps(fields) + "\n"


def test_a_folder_is_imported(tmp_path: Path) -> None:
    first, second = read(collect_with_openenv(tmp_path, [{"level": 1}, "hard"]))
    assert (first.episode_id, second.episode_id) == ("ep-000000", "ep-000001")
    assert [message.role for message in first.messages] == ["user", *["assistant", "tool"] * 3]
    assert first.messages[1].tool_calls
    assert first.messages[1].tool_calls[0].function.arguments == '{"number": 1}'
    assert first.messages[2].tool_call_id == first.messages[1].tool_calls[0].id
    assert (first.reward, first.done, first.stop_reason) == (1.0, True, StopReason.DONE)
    assert (first.task, second.task) == ({"level": 1}, {"task": "hard"})
    assert first.group_id != second.group_id
    assert first.environment == "guess:small"
    assert first.agent == {"provider": "openai", "model": "gpt-5-mini", "temperature": 0.2}


def test_only_metrics_named_reward_are_reward_parts(tmp_path: Path) -> None:
    (one,) = read(collect_with_openenv(tmp_path, [None]))
    assert one.rewards == {"final_reward": 1.0}


def test_an_episode_that_is_not_done_ran_out_of_turns(tmp_path: Path) -> None:
    (one,) = read(collect_with_openenv(tmp_path, [None], max_turns=2))
    assert (one.reward, one.done, one.stop_reason) == (0.25, False, StopReason.MAX_TURNS)


def test_tools_in_extra_and_at_the_top_level(tmp_path: Path) -> None:
    tools = [{"name": "guess", "description": "Guess.", "inputSchema": {"type": "object"}}]
    file = tmp_path / "results.jsonl"
    file.write_text(line(extra={"tools": tools}) + line(tools=tools))
    assert [one.tools[0]["function"]["name"] for one in read(tmp_path)] == ["guess", "guess"]


def test_a_reward_of_null_is_unscored(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(line(reward=None))
    assert [(one.reward, one.broken) for one in read(tmp_path)] == [(None, False)]


def test_unreadable_lines_are_reported_in_order(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text(line() + '{"episode_id": "x"}\n{"episo\n' + line(extra=[1]))
    (tmp_path / "metadata.json").write_text("{")
    metadata, good, *bad = read_openenv(file)
    assert isinstance(metadata, UnreadableRecord) and metadata.path.name == "metadata.json"
    assert isinstance(good, Episode) and good.environment == "openenv"
    reasons = {one.line: one.reason for one in bad if isinstance(one, UnreadableRecord)}
    assert list(reasons) == [2, 3, 4] and len(bad) == 3
    assert "messages" in reasons[2]
    assert reasons[3].startswith("not JSON") and reasons[4].startswith("extra ")


def test_other_files_are_not_read(tmp_path: Path) -> None:
    collect_with_openenv(tmp_path, [None])
    backup = tmp_path / "results.20260101T000000Z.bak.jsonl"
    backup.write_text(line())
    assert find_import_files(FORMATS["openenv"], tmp_path) == [tmp_path / "results.jsonl"]
    assert find_import_files(FORMATS["openenv"], backup) == [backup]


def test_a_folder_without_results_raises(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"results\.jsonl"):
        find_import_files(FORMATS["openenv"], tmp_path)
