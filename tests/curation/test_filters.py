"""Filters on episodes."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from curation.attempts import (
    attempt,
    build_catalog,
    call,
    curate_episodes,
    kept_ids,
    model,
    read_rows,
    tool_result,
    user,
    write_run,
)
from ludus.curation import CurateConfig, CurateReport, curate
from ludus.curation.filters import apply_filters
from ludus.data.episode import Episode, StopReason, Usage
from ludus.errors import ConfigError, RunError

LONG = (user("q"), model("a"), user("more"), model("b"))


def left(folder: Path, *episodes: Episode, **selection: Any) -> list[str]:
    """Return the ids that these filters keep, in the order of the rows."""
    curate_episodes(folder, *episodes, **selection)
    return [row["episode_id"] for row in read_rows(folder / "out" / "train.jsonl")]


def reasons(folder: Path, *episodes: Episode, **how: Any) -> dict[str, int]:
    return curate_episodes(folder, *episodes, **how).left_out


@pytest.mark.parametrize("reason", [StopReason.BROKEN, StopReason.DEADLINE])
def test_faults_are_excluded_whatever_their_reward(tmp_path: Path, reason: StopReason) -> None:
    faulty = attempt("faulty", 1.0, stop_reason=reason)
    excluded = reasons(tmp_path, faulty, attempt("fine"), keep_unscored=True)
    assert excluded == {"broken": 1}


@pytest.mark.parametrize("reward", ["null", "NaN", "Infinity", "-Infinity"])
def test_a_reward_that_is_not_finite_counts_as_unscored(tmp_path: Path, reward: str) -> None:
    run = write_run(tmp_path / "run", attempt("scored"), attempt("odd", 0.25))
    file = run / "episodes.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"reward":0.25', b'"reward":%b' % reward.encode()))
    assert curate([run], tmp_path / "out", CurateConfig()).left_out == {"unscored": 1}
    curate([run], tmp_path / "all", CurateConfig(keep_unscored=True))
    assert [row["reward"] for row in read_rows(tmp_path / "all" / "train.jsonl")] == [1.0, None]


def test_unscored_episodes_are_kept_unless_a_reward_is_required(
    tmp_path: Path,
) -> None:
    some = [attempt("a", None), attempt("b", 0.5)]
    assert left(tmp_path / "1", *some, keep_unscored=True) == ["a", "b"]
    assert left(tmp_path / "2", *some, keep_unscored=True, min_reward=0.1) == ["b"]


def test_min_reward_is_inclusive(tmp_path: Path) -> None:
    some = [attempt("below", 0.79), attempt("at", 0.8), attempt("above", 0.9)]
    assert left(tmp_path, *some, min_reward=0.8) == ["at", "above"]


def test_the_solve_rate_counts_attempts_that_where_keeps(tmp_path: Path) -> None:
    half = [attempt(f"h{n}", n, task="half", seed=n) for n in (0.0, 1.0)]
    easy = [attempt(f"e{n}", 1.0, task="easy", seed=n) for n in (0, 1)]
    band = {"solve_rate": (0.1, 0.9)}
    assert left(tmp_path / "1", *half, *easy, **band) == ["h0.0", "h1.0"]
    with pytest.raises(RunError, match="where 2, solve-rate 2"):
        left(tmp_path / "2", *half, *easy, where="seed = 1", **band)


def test_solved_at_and_bounds_of_the_solve_rate_are_inclusive(
    tmp_path: Path,
) -> None:
    thirds = [attempt(str(n), n / 10, task="t") for n in (2, 5, 8)]
    for number, (at, band, fits) in enumerate(
        [(0.5, (2 / 3, 1.0), True), (0.8, (0.0, 1 / 3), True), (0.9, (0.1, 1.0), False)]
    ):
        with build_catalog(tmp_path / str(number), *thirds) as catalog:
            apply_filters(catalog, CurateConfig(solve_rate=band, solved_at=at))
            assert len(kept_ids(catalog)) == (3 if fits else 0)


def test_top_fraction_is_per_environment_and_rounded_up(tmp_path: Path) -> None:
    a = [attempt(f"a{n}", n / 100, environment="a") for n in range(10)]
    b = [attempt(f"b{n}", 100.0 + n, environment="b") for n in range(3)]
    assert left(tmp_path / "1", *a, *b, top_fraction=0.3) == ["a7", "a8", "a9", "b2"]
    assert left(tmp_path / "2", *a, *b, top_fraction=0.31) == ["a6", "a7", "a8", "a9", "b2"]
    assert len(left(tmp_path / "3", *a, *b, top_fraction=1.0)) == 13


def test_top_fraction_has_no_rounding_error(tmp_path: Path) -> None:
    assert len(left(tmp_path, *(attempt(str(n)) for n in range(30)), top_fraction=0.1)) == 3


def test_ties_are_decided_by_length_and_order(tmp_path: Path) -> None:
    some = [attempt("long", messages=LONG), attempt("first"), attempt("second")]
    assert left(tmp_path / "1", *some, top_fraction=0.1) == ["first"]
    assert left(tmp_path / "2", *some, top_fraction=0.5) == ["first", "second"]


def test_best_of_group_follows_the_other_filters(tmp_path: Path) -> None:
    some = [
        attempt("worse", 0.5, task="t"),
        attempt("best", 1.0, task="t", messages=LONG),
        attempt("other", 0.1, task="u"),
    ]
    assert left(tmp_path / "1", *some, best_of_group=True) == ["best", "other"]
    assert left(tmp_path / "2", *some, best_of_group=True, where="turns <= 1") == ["worse", "other"]


CHOSEN = attempt(
    "chosen",
    agent={"provider": "openai", "model": "it's 4"},
    task="t",
    messages=(
        user("q"),
        model("", call("guess", {"word": "crane"})),
        tool_result("no"),
        model("ok"),
    ),
    tool_calls=1,
    rewards={"style": 0.5},
    usage=Usage(prompt_tokens=9, cost=0.25),
    seed=4,
)


@pytest.mark.parametrize(
    "where",
    [
        "model = 'it''s 4'",
        "provider = 'openai'",
        "cost < 0.3",
        "usage.prompt_tokens = 9",
        "rewards['style'] > 0.4",
        "len(messages) = 4",
        "messages[-1].content = 'ok'",
        "messages[2].tool_calls[1].function.name = 'guess'",
        "agent->>'$.model' LIKE '%4'",
        "tool_calls > 0 AND seed IN (4, 5)",
        "run = 'run' AND tool_calls = 1",
        "run = 'run' AND seed",
    ],
)
def test_where_conditions(tmp_path: Path, where: str) -> None:
    assert left(tmp_path, attempt("other"), CHOSEN, where=where) == ["chosen"]


def test_where_knows_the_names_of_runs(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "runs" / name, attempt(name)) for name in ("one", "two")]
    wanted = CurateConfig(where="run = 'two'")
    curate(runs, tmp_path / "out", wanted)
    assert [row["episode_id"] for row in read_rows(tmp_path / "out" / "train.jsonl")] == ["two"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("rewad > 1", "Did you mean 'reward'?"),
        ("colour = 'red'", "episode_id"),
        ("reward >", "`where` must "),
        ("reward > 0)", "`where` must "),
        ("count(*) > 1", "`where` must "),
        ("unnest([true, true])", "`where` must "),
        ("environment::INTEGER > 1", "`where` cannot "),
        ("turns * 2147483647 * 2147483647 * 9 > 1", "`where` cannot "),
        ("(SELECT count(*) FROM read_csv('secrets.csv')) > 0", "no files, network"),
        ("(SELECT content FROM read_text('secrets.csv')) > ''", "no files, network"),
        ("getenv('HOME') > ''", "getenv does not exist"),
        ("true; COPY (SELECT 1) TO 'secrets.csv'", "one SQL condition"),
        ("true; DROP TABLE episodes; SELECT true", "one SQL condition"),
    ],
)
def test_an_invalid_where_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secrets.csv").write_text("secret\n1\n")
    with pytest.raises(ConfigError) as caught:
        left(tmp_path, attempt("a", turns=2**20), where=where)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"top_fraction": 0.0},
        {"top_fraction": 1.1},
        {"solve_rate": (0.9, 0.1)},
        {"solve_rate": (-0.1, 1.0)},
        {"solve_rate": (0.0, nan)},
        {"min_reward": -inf},
        {"solved_at": nan},
    ],
)
def test_invalid_bounds_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CurateConfig(**wrong)


def test_the_mean_of_huge_rewards_does_not_overflow(tmp_path: Path) -> None:
    report: CurateReport = curate_episodes(tmp_path, *(attempt(str(n), 1e308) for n in range(3)))
    assert report.rewards == {"min": 1e308, "mean": 1e308, "max": 1e308}


def test_untrainable_episodes_are_excluded_from_training_rows_only(
    tmp_path: Path,
) -> None:
    some = [
        attempt("silent", messages=(user("q"),)),
        attempt("torn", messages=(user("q"), model("", call("f", "{"))), malformed_calls=1),
        attempt("cut off", messages=(user("q"), model("", call("f", '{"a'))), tool_calls=0),
        attempt("list", messages=(user("q"), model("", call("f", "[]")))),
        attempt("comma", messages=(user("q"), model("", call("f", '{"a": 1,}')))),
        attempt("fine", messages=(user("q"), model("", call("f", "{}")))),
    ]
    excluded = reasons(tmp_path / "1", *some)
    assert excluded == {"no reply": 1, "malformed call": 4}
    assert reasons(tmp_path / "2", *some, to="episodes") == {}


def test_an_empty_where_raises() -> None:
    with pytest.raises(ConfigError, match="`where`"):
        CurateConfig(where=" ")
