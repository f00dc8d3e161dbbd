"""The index of episodes follows files that grow, are rewritten or are damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.errors import ConfigError
from ludus.viewer.episode_index import EpisodeIndex
from ludus.viewer.episode_queries import EpisodeFilter, EpisodeQueries
from ludus.viewer.library import find_entries
from viewer.viewing import make_episode, write_episodes


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_episodes(tmp_path / "run", *(make_episode(each, f"word {each}") for each in range(5)))
    return tmp_path / "run"


@pytest.fixture
def queries(run: Path) -> Iterator[EpisodeQueries]:
    index = EpisodeIndex()
    index.add_entries(list(find_entries([run]).values()))
    index.update()
    with index:
        yield EpisodeQueries(index)


def ids(queries: EpisodeQueries, **fields: object) -> list[str]:
    wanted = EpisodeFilter(**fields)  # type: ignore[arg-type]
    return [str(row["episode_id"])[-1] for row in queries.page(wanted, 0, 100)["rows"]]


def update(queries: EpisodeQueries) -> None:
    queries._index.update()


def test_filters_and_orders(queries: EpisodeQueries) -> None:
    assert ids(queries) == ["0", "1", "2", "3", "4"]
    assert ids(queries, where="reward >= 3") == ["3", "4"]
    assert ids(queries, sort="reward", descending=True) == ["4", "3", "2", "1", "0"]
    assert ids(queries, search="WORD 3") == ["3"]
    assert ids(queries, search="it's not there") == []
    for pattern in ("word .", "word|x", "(", "[0-9]", "\\d", "^word", "*"):
        assert ids(queries, search=pattern) == []
    assert ids(queries, where="reward > 1 -- a comment", search="word 4") == ["4"]
    assert ids(queries, where="messages[1].role = 'user' AND environment = 'talk'")
    assert ids(queries, stop_reason="broken") == []


def test_a_growing_file_is_continued_and_an_incomplete_line_waits(
    queries: EpisodeQueries, run: Path
) -> None:
    first = queries.find(EpisodeFilter())
    line = make_episode(5, "late").to_line()
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(line[:40])
        file.flush()
        update(queries)
        assert len(ids(queries)) == 5
        assert len(set(queries._index.progress)) == 1
        file.write(line[40:])
    update(queries)
    assert ids(queries, search="late") == ["5"]
    # A page that was opened before continues as it was.
    old = queries.page(EpisodeFilter(), 0, 100, first.revision)
    assert old["total"] == 5 and queries.page(EpisodeFilter(), 0, 100)["total"] == 6


@pytest.mark.parametrize("kept", [0, 2])
def test_a_rewritten_file_is_read_again(queries: EpisodeQueries, run: Path, kept: int) -> None:
    lines = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    new = [make_episode(each, f"new {each}").to_line() for each in range(kept, 8)]
    (run / "episodes.jsonl").write_bytes(b"".join(lines[:kept] + new))
    update(queries)
    assert ids(queries) == [str(each) for each in range(8)]
    assert len(ids(queries, search="new")) == 8 - kept


def test_a_removed_run_does_not_stop_the_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_episodes(tmp_path / name, make_episode(0, name))
    index = EpisodeIndex()
    index.add_entries(list(find_entries([tmp_path]).values()))
    index.update()
    (tmp_path / "a" / "episodes.jsonl").unlink()
    write_episodes(tmp_path / "b", make_episode(1, "b"))
    index.update()
    with index:
        assert index.sql("SELECT run, count(*) FROM episodes GROUP BY 1") == [("b", 2)]
        assert index.error == ""


def test_damaged_lines_are_counted_and_left_out(queries: EpisodeQueries, run: Path) -> None:
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(b'{"half":\n\nnull\n{"version":1}\n')
        file.write(make_episode(7, "after").to_line())
    update(queries)
    assert ids(queries) == ["0", "1", "2", "3", "4", "7"]
    (file_,) = queries._index.files
    assert file_.unreadable == 3
    row = queries.page(EpisodeFilter(search="after"), 0, 1)["rows"][0]
    assert b'"after"' in file_.read_line(row["line"])


def test_blank_lines_hide_no_episode(queries: EpisodeQueries, run: Path) -> None:
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(b"\n" + make_episode(7, "after").to_line())
        file.write(b" \r\n" + make_episode(8, "later").to_line())
    update(queries)
    assert ids(queries) == ["0", "1", "2", "3", "4", "7", "8"]
    (file_,) = queries._index.files
    assert file_.unreadable == 0


def test_a_search_takes_every_character_literally(tmp_path: Path) -> None:
    texts = ["a.b", "x\\d(1)*", "[y]{2}^$|+?", "it's", "Straße 5%_", "two\nlines"]
    write_episodes(tmp_path, *(make_episode(at, text) for at, text in enumerate(texts)))
    index = EpisodeIndex()
    index.add_entries(list(find_entries([tmp_path]).values()))
    index.update()
    with index:
        queries = EpisodeQueries(index)
        for at, text in enumerate(texts):
            assert ids(queries, search=text.upper() if "ß" not in text else text) == [str(at)]


def test_images_are_not_part_of_the_index(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    message = {"role": "user", "content": [{"type": "text", "text": "Look."}, image]}
    episode = make_episode(0, "x", messages=(message,))
    write_episodes(tmp_path / "run", episode)
    index = EpisodeIndex()
    index.add_entries(list(find_entries([tmp_path]).values()))
    index.update()
    with index:
        (length,) = index.sql("SELECT length(messages::VARCHAR) FROM episodes")[0]
        assert length < 1_000
        assert len(index.files[0].read_line(0)) > 3_000_000


def test_statistics_describe_the_filtered_episodes(queries: EpisodeQueries) -> None:
    stats = queries.find(EpisodeFilter(where="reward > 1")).stats
    assert (stats["episodes"], stats["mean"], stats["stop_reasons"]) == (3, 3.0, {"done": 3})
    assert [each["count"] for each in stats["histogram"]] == [1, 1, 1]


@pytest.mark.parametrize(
    "where",
    [
        "reward >",
        "rewards_ = 1",
        "true; DROP TABLE episodes",
        "(SELECT count(*) FROM read_csv('/etc/passwd')) > 0",
        "1",
        "_id = 0",
    ],
)
def test_a_bad_condition_is_refused(queries: EpisodeQueries, where: str) -> None:
    with pytest.raises(ConfigError):
        queries.find(EpisodeFilter(where=where))
    assert len(ids(queries)) == 5


def test_the_temporary_folder_is_removed(run: Path) -> None:
    with EpisodeIndex() as index:
        folder = index._folder
        assert folder.is_dir()
    assert not folder.exists()
