"""Which episodes are worth training on, step by step."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from curation.attempts import (
    attempt,
    call,
    cataloged,
    curated,
    kept,
    model,
    rows,
    run_of,
    told,
    user,
)
from ludus.curation import CurateConfig, CurateReport, FilterConfig, curate
from ludus.curation.filters import apply_filters
from ludus.data.episode import Episode, StopReason, Usage
from ludus.errors import ConfigError, RunError

LONG = (user("q"), model("a"), user("more"), model("b"))


def left(folder: Path, *episodes: Episode, **selection: Any) -> list[str]:
    """The ids that this selection leaves, in the order of the rows."""
    curated(folder, *episodes, selection=FilterConfig(**selection))
    return [row["episode_id"] for row in rows(folder / "out" / "train.jsonl")]


def reasons(folder: Path, *episodes: Episode, **how: Any) -> dict[str, int]:
    return curated(folder, *episodes, **how).left_out


@pytest.mark.parametrize("reason", [StopReason.BROKEN, StopReason.DEADLINE])
def test_what_the_infrastructure_broke_is_left_out_whatever_its_reward(
    tmp_path: Path, reason: StopReason
) -> None:
    faulty = attempt("faulty", 1.0, stop_reason=reason)
    found = reasons(tmp_path, faulty, attempt("fine"), selection=FilterConfig(unscored=True))
    assert found == {"broken": 1}


@pytest.mark.parametrize("reward", ["null", "NaN", "Infinity", "-Infinity"])
def test_a_reward_that_is_no_finite_number_is_none(tmp_path: Path, reward: str) -> None:
    run = run_of(tmp_path / "run", attempt("scored"), attempt("odd", 0.25))
    file = run / "episodes.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"reward":0.25', b'"reward":%b' % reward.encode()))
    assert curate([run], tmp_path / "out", CurateConfig()).left_out == {"unscored": 1}
    curate([run], tmp_path / "all", CurateConfig(selection=FilterConfig(unscored=True)))
    assert [row["reward"] for row in rows(tmp_path / "all" / "train.jsonl")] == [1.0, None]


def test_what_is_unscored_stays_where_it_is_asked_for_and_no_reward_is_wanted(
    tmp_path: Path,
) -> None:
    some = [attempt("a", None), attempt("b", 0.5)]
    assert left(tmp_path / "1", *some, unscored=True) == ["a", "b"]
    assert left(tmp_path / "2", *some, unscored=True, min_reward=0.1) == ["b"]


def test_the_least_reward_is_enough(tmp_path: Path) -> None:
    some = [attempt("below", 0.79), attempt("at", 0.8), attempt("above", 0.9)]
    assert left(tmp_path, *some, min_reward=0.8) == ["at", "above"]


def test_turns_lie_between_their_bounds_which_are_allowed_themselves(tmp_path: Path) -> None:
    some = [attempt(str(turns), turns=turns) for turns in range(5)]
    assert left(tmp_path, *some, min_turns=1, max_turns=3) == ["1", "2", "3"]


def test_an_episode_that_does_not_count_its_turns_has_none(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", attempt("a", turns=7), attempt("b"))
    file = run / "episodes.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"turns":7,', b""))
    report = curate([run], tmp_path / "out", CurateConfig(selection=FilterConfig(max_turns=0)))
    assert (report.kept, report.left_out) == (1, {"max-turns": 1})


def test_a_solve_rate_counts_the_attempts_that_a_condition_lets_through(tmp_path: Path) -> None:
    half = [attempt(f"h{n}", n, task="half", seed=n) for n in (0.0, 1.0)]
    easy = [attempt(f"e{n}", 1.0, task="easy", seed=n) for n in (0, 1)]
    band = {"solve_rate": (0.1, 0.9)}
    assert left(tmp_path / "1", *half, *easy, **band) == ["h0.0", "h1.0"]
    with pytest.raises(RunError, match="where 2, solve-rate 2"):
        left(tmp_path / "2", *half, *easy, where="seed = 1", **band)


def test_a_task_is_solved_from_the_reward_that_is_asked_for_and_bounds_are_allowed(
    tmp_path: Path,
) -> None:
    thirds = [attempt(str(n), n / 10, task="t") for n in (2, 5, 8)]
    for number, (at, band, fits) in enumerate(
        [(0.5, (2 / 3, 1.0), True), (0.8, (0.0, 1 / 3), True), (0.9, (0.1, 1.0), False)]
    ):
        with cataloged(tmp_path / str(number), *thirds) as catalog:
            apply_filters(catalog, FilterConfig(solve_rate=band, solved_at=at))
            assert len(kept(catalog)) == (3 if fits else 0)


def test_the_best_part_is_that_of_each_environment_rounded_up(tmp_path: Path) -> None:
    a = [attempt(f"a{n}", n / 100, environment="a") for n in range(10)]
    b = [attempt(f"b{n}", 100.0 + n, environment="b") for n in range(3)]
    assert left(tmp_path / "1", *a, *b, top_fraction=0.3) == ["a7", "a8", "a9", "b2"]
    assert left(tmp_path / "2", *a, *b, top_fraction=0.31) == ["a6", "a7", "a8", "a9", "b2"]
    assert len(left(tmp_path / "3", *a, *b, top_fraction=1.0)) == 13


def test_a_tenth_of_thirty_is_three(tmp_path: Path) -> None:
    assert len(left(tmp_path, *(attempt(str(n)) for n in range(30)), top_fraction=0.1)) == 3


def test_of_equal_rewards_the_shorter_is_better_and_then_the_first(tmp_path: Path) -> None:
    some = [attempt("long", messages=LONG), attempt("first"), attempt("second")]
    assert left(tmp_path / "1", *some, top_fraction=0.1) == ["first"]
    assert left(tmp_path / "2", *some, top_fraction=0.5) == ["first", "second"]


def test_the_best_of_a_group_is_the_best_of_what_the_other_steps_left(tmp_path: Path) -> None:
    some = [
        attempt("worse", 0.5, task="t"),
        attempt("best", 1.0, task="t", messages=LONG),
        attempt("other", 0.1, task="u"),
    ]
    assert left(tmp_path / "1", *some, best_of_group=True) == ["best", "other"]
    assert left(tmp_path / "2", *some, best_of_group=True, max_turns=1) == ["worse", "other"]


CHOSEN = attempt(
    "chosen",
    agent={"provider": "openai", "model": "it's 4"},
    task="t",
    messages=(user("q"), model("", call("guess", {"word": "crane"})), told("no"), model("ok")),
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
def test_a_condition_may_say_this_and_what_it_says_nothing_about_goes(
    tmp_path: Path, where: str
) -> None:
    assert left(tmp_path, attempt("other"), CHOSEN, where=where) == ["chosen"]


def test_a_condition_knows_runs_by_the_names_of_their_folders(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / "runs" / name, attempt(name)) for name in ("one", "two")]
    wanted = CurateConfig(selection=FilterConfig(where="run = 'two'"))
    curate(runs, tmp_path / "out", wanted)
    assert [row["episode_id"] for row in rows(tmp_path / "out" / "train.jsonl")] == ["two"]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("rewad > 1", "an episode has no 'rewad'. Did you mean 'reward'?"),
        ("colour = 'red'", "It has version, episode_id, "),
        ("reward >", "no condition in SQL"),
        ("reward > 0)", "no condition in SQL"),
        ("count(*) > 1", "no condition in SQL"),
        ("unnest([true, true])", "no condition in SQL"),
        ("environment::INTEGER > 1", "cannot be worked out"),
        ("turns * 2147483647 * 2147483647 * 9 > 1", "cannot be worked out"),
    ],
)
def test_a_condition_that_cannot_be_is_told_in_one_line(
    tmp_path: Path, where: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        left(tmp_path, attempt("a", turns=2**20), where=where)
    assert said in str(caught.value) and "\n" not in str(caught.value)
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
def test_bounds_that_cannot_be_are_refused_before_anything_is_read(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FilterConfig(**wrong)


def test_the_mean_of_huge_rewards_is_a_number(tmp_path: Path) -> None:
    report: CurateReport = curated(tmp_path, *(attempt(str(n), 1e308) for n in range(3)))
    assert report.rewards == {"min": 1e308, "mean": 1e308, "max": 1e308}


def test_what_a_template_cannot_render_is_left_out_of_rows_to_train_on_alone(
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
    found = reasons(tmp_path / "1", *some)
    assert found == {"no reply": 1, "malformed call": 4}
    assert reasons(tmp_path / "2", *some, to="episodes") == {}


def test_an_empty_condition_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="--where is empty"):
        FilterConfig(where=" ")
