"""Reading episodes back: all of them, and single ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.sample_episodes import RUN, attempt, written
from ludus.data.episode import Episode, StopReason, Usage
from ludus.data.episode_reader import (
    EpisodeHead,
    ResumeIndex,
    episodes,
    find_episode,
    read_resume_index,
)
from ludus.data.messages import Message
from ludus.errors import RunError

BROKEN, DEADLINE = StopReason.BROKEN, StopReason.DEADLINE


def is_played(recorded: ResumeIndex, index: int) -> bool:
    return index not in recorded.pending_indices(index + 1)


def is_broken(recorded: ResumeIndex, index: int) -> bool:
    missing = recorded.pending_indices(index + 1, retry_broken=False)
    return not is_played(recorded, index) and index not in missing


def test_lines_have_rewards_of_turns_and_progress_only_where_there_are_any() -> None:
    plain, rich = attempt(0), attempt(1, turn_rewards=(0.0, 1.0), progress=(0.0, 0.5, 1.0))
    for episode, keys in ((plain, set()), (rich, {"turn_rewards", "progress"})):
        line = episode.to_line()
        assert json.loads(line).keys() & {"turn_rewards", "progress"} == keys
        assert Episode.from_line(line) == episode
    assert Episode.model_validate({**plain.model_dump(), "progress": None}) == plain
    surrogate = (Message(role="user", content="\ud800"),)
    assert b"progress" not in attempt(2, messages=surrogate).to_line()


def test_what_is_read_back_is_what_was_played(tmp_path: Path) -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=3, cost=0.5)
    path = written(
        tmp_path / "e",
        attempt(0, reward=1.0, usage=usage),
        attempt(4, reward=-2.0, attempt=3),
        attempt(2, BROKEN, usage=usage),
        attempt(3, DEADLINE),
        attempt(1, StopReason.MAX_TURNS, reward=None),
    )
    recorded = read_resume_index(path)
    assert [is_played(recorded, index) for index in range(6)] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]
    assert [is_broken(recorded, index) for index in range(6)] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    assert list(recorded.pending_indices(6)) == [2, 3, 5]
    assert list(recorded.pending_indices(6, retry_broken=False)) == [5]
    totals = recorded.totals
    assert (totals.episodes, totals.rewards.n, totals.broken) == (5, 2, 2)
    assert totals.rewards.mean == -0.5
    assert (totals.prompt_tokens, totals.completion_tokens, totals.cost) == (20, 6, 1.0)
    assert totals.stop_reasons == {"done": 2, "max_turns": 1, "broken": 1, "deadline": 1}
    assert totals.highest_attempt == 3


def test_an_empty_file_has_no_mean_and_no_cost(tmp_path: Path) -> None:
    totals = read_resume_index(written(tmp_path / "e")).totals
    assert (totals.episodes, totals.rewards.estimate(), totals.cost) == (0, None, None)


def test_a_broken_attempt_that_was_tried_again_is_a_retry(tmp_path: Path) -> None:
    path = written(tmp_path / "e", attempt(0, BROKEN), attempt(0, DEADLINE), attempt(0, attempt=3))
    recorded = read_resume_index(path)
    assert is_played(recorded, 0)
    assert not is_broken(recorded, 0)
    assert recorded.duplicates == 0
    assert (recorded.totals.episodes, recorded.totals.broken) == (1, 0)
    assert +recorded.totals.stop_reasons == {"done": 1}


def test_a_broken_attempt_is_nobodys_score_whatever_its_line_says(tmp_path: Path) -> None:
    totals = read_resume_index(written(tmp_path / "e", attempt(0, BROKEN, reward=0.0))).totals
    assert (totals.episodes, totals.rewards.n, totals.rewards.mean) == (1, 0, None)


@pytest.mark.parametrize("reason", [StopReason.DONE, BROKEN])
def test_a_line_for_what_was_played_already_is_a_duplicate(
    reason: StopReason, tmp_path: Path
) -> None:
    usage = Usage(prompt_tokens=5)
    first = attempt(0, reward=1.0, usage=usage)
    recorded = read_resume_index(written(tmp_path / "e", first, attempt(0, reason, usage=usage)))
    assert is_played(recorded, 0)
    assert (recorded.duplicates, recorded.totals.episodes) == (1, 1)
    assert (recorded.totals.rewards.n, recorded.totals.rewards.mean) == (1, 1.0)
    assert recorded.totals.prompt_tokens == 10


@pytest.mark.parametrize(
    "foreign", ["deadbeef-000001", "mine", "c0ffee00-1", "c0ffee00-0000001", "c0ffee00-100000000"]
)
def test_ids_of_other_plans_are_counted_apart(foreign: str, tmp_path: Path) -> None:
    path = written(tmp_path / "e", attempt(0, episode_id=foreign), attempt(5))
    recorded = read_resume_index(path, run=RUN)
    assert (recorded.foreign, recorded.totals.episodes) == (1, 2)
    assert list(recorded.pending_indices(6)) == [0, 1, 2, 3, 4]


def test_without_a_run_that_of_the_first_id_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "e", attempt(0), attempt(1, episode_id="deadbeef-000001"))
    recorded = read_resume_index(path)
    assert (recorded.run, recorded.foreign, is_played(recorded, 1)) == (RUN, 1, False)


def test_a_line_that_is_no_episode_is_counted_and_named(tmp_path: Path) -> None:
    bad = [b"not json\n", b"[1]\n", b'{"episode_id": 3}\n', b"\0" * 20 + b"\n"]
    holed = bytearray(attempt(7).to_line())
    holed[-20:-10] = bytes(10)
    path = written(tmp_path / "e", attempt(0), *bad, b"\n", bytes(holed), attempt(1))
    recorded = read_resume_index(path)
    assert (recorded.unreadable, recorded.unreadable_lines) == (5, [2, 3, 4, 5, 7])
    assert list(recorded.pending_indices(8)) == [2, 3, 4, 5, 6, 7]


def test_only_the_first_ten_unreadable_lines_are_remembered(tmp_path: Path) -> None:
    recorded = read_resume_index(written(tmp_path / "e", b"?\n" * 1000))
    assert (recorded.unreadable, recorded.unreadable_lines) == (1000, list(range(1, 11)))


@settings(deadline=None)
@given(cut=st.integers(1, len(attempt(1).to_line()) - 2))
@example(cut=attempt(1).to_line().index(b'},"environment"') + 1)
def test_a_torn_last_line_does_not_count(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("torn") / "e"
    written(path, attempt(0), attempt(1).to_line()[:cut])
    recorded = read_resume_index(path)
    assert (recorded.totals.episodes, recorded.unreadable, is_played(recorded, 1)) == (1, 0, False)
    assert list(episodes(path)) == [attempt(0)]


def test_a_last_line_that_lacks_only_its_newline_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "e", attempt(0), attempt(1).to_line()[:-1])
    assert is_played(read_resume_index(path), 1)
    assert list(episodes(path)) == [attempt(0), attempt(1)]


@pytest.mark.parametrize("strict", [True, False])
def test_a_later_version_of_the_format_is_named(strict: bool, tmp_path: Path) -> None:
    path = written(tmp_path / "e", attempt(0), b'{"version":2,"id":7}\n')
    for read in (read_resume_index, lambda path: list(episodes(path, strict=strict))):
        with pytest.raises(RunError, match=r"e:2 .*version 2"):
            read(path)


def test_counting_as_it_is_played_gives_what_is_read_back(tmp_path: Path) -> None:
    played = [attempt(index % 5, reason) for index, reason in enumerate([*StopReason] * 2)]
    live = ResumeIndex(run=RUN)
    for episode in played:
        live.add([EpisodeHead.from_episode(episode)])
    assert live == read_resume_index(written(tmp_path / "e", *played), run=RUN)


def test_a_damaged_line_is_named_by_its_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = attempt(1).to_line().replace(b'"done":false', b'"done":"perhaps"')
    path = written(tmp_path / "e", attempt(0), line, attempt(2))
    with pytest.raises(RunError, match=r"e:2 .*done: "):
        list(episodes(path, strict=True))
    assert list(episodes(path)) == [attempt(0), attempt(2)]
    assert f"{path}: skipped 1 damaged line (2)" in caplog.text
    with pytest.raises(RunError, match=r"e:2 .*done: "):
        find_episode(path, "1")


@pytest.mark.parametrize("wanted", ["17", "000017", f"{RUN}-000017"])
def test_an_episode_is_found_by_index_and_by_id(wanted: str, tmp_path: Path) -> None:
    good = attempt(17, attempt=2)
    path = written(tmp_path / "e", attempt(16), attempt(17, BROKEN), good, attempt(17, BROKEN))
    assert find_episode(path, wanted) == good


def test_of_broken_attempts_alone_the_last_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "e", attempt(1, BROKEN), attempt(1, DEADLINE, attempt=2), b"?\n")
    assert find_episode(path, "1").attempt == 2


def test_an_id_of_another_form_is_found(tmp_path: Path) -> None:
    odd = attempt(0, episode_id='a "b" ü')
    assert find_episode(written(tmp_path / "e", attempt(0), odd), 'a "b" ü') == odd


@pytest.mark.parametrize(
    ("there", "says"),
    [([attempt(9), attempt(3), attempt(5)], "highest index is 9"), ([], "")],
)
def test_what_is_not_found_is_told_with_what_there_is(
    there: list[Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=f"'17'.*{says}"):
        find_episode(written(tmp_path / "e", *there), "17")


def test_a_file_that_is_not_there_is_a_run_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file"):
        read_resume_index(tmp_path / "e")


def test_half_a_character_does_not_cost_an_episode() -> None:
    odd = json.loads('"\\ud800 and \\ud83d\\ude00"')
    line = attempt(1, messages=(Message(role="user", content=odd),)).to_line()
    assert Episode.from_line(line).messages[0].text == "? and \N{GRINNING FACE}"
