"""Preference pairs: which attempts are paired, and the rows of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curation.attempts import (
    GUESS,
    attempt,
    call,
    curate_episodes,
    model,
    read_rows,
    system,
    tool_result,
    user,
    write_run,
)
from ludus.curation import CurateConfig, curate
from ludus.data.episode import Episode, StopReason
from ludus.errors import ConfigError, RunError


def paired(folder: Path, *episodes: Episode, **how: Any) -> list[tuple[str, str]]:
    """Return the ids of chosen and rejected, in the order of the rows."""
    curate_episodes(folder, *episodes, to="dpo", **how)
    rows = read_rows(folder / "out" / "train.jsonl")
    return [(row["chosen_id"], row["rejected_id"]) for row in rows]


def tries(*rewards: float, task: str = "t") -> list[Episode]:
    return [attempt(f"{task}{reward}", reward, task=task) for reward in rewards]


def test_the_best_attempt_at_a_task_is_paired_with_the_worst(tmp_path: Path) -> None:
    some = [*tries(0.5, 0.0, 1.0), *tries(0.2, 0.9, task="u")]
    assert paired(tmp_path, *some) == [("t1.0", "t0.0"), ("u0.9", "u0.2")]


def test_all_pairs_with_the_minimum_margin(tmp_path: Path) -> None:
    pairs = paired(tmp_path, *tries(0.0, 0.5, 0.6, 1.0), pairs="all", min_margin=0.5)
    assert pairs == [("t0.5", "t0.0"), ("t0.6", "t0.0"), ("t1.0", "t0.0"), ("t1.0", "t0.5")]


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.3), (0.1, 0.2), (0.7, 0.8), (-0.1, 0.0)])
def test_the_margin_tolerates_rounding_errors(tmp_path: Path, low: float, high: float) -> None:
    assert len(paired(tmp_path, *tries(low, high), min_margin=0.1)) == 1


def test_every_unpaired_attempt_has_a_reason(tmp_path: Path) -> None:
    some = [
        *tries(0.0, 0.5, 1.0, task="pair"),
        *tries(1.0, task="alone"),
        attempt("e1", 0.5, task="equal"),
        attempt("e2", 0.5, task="equal"),
        *tries(0.5, 0.55, task="close"),
    ]
    report = curate_episodes(tmp_path, *some, to="dpo")
    assert report.left_out == {"alone": 1, "equal rewards": 2, "min-margin": 2, "in no pair": 1}
    assert (report.kept, report.rows) == (2, {"train": 1})


def test_equal_rewards_are_not_paired_even_without_a_margin(tmp_path: Path) -> None:
    some = [attempt("a", 0.5, task="t"), attempt("b", 0.5, task="t")]
    with pytest.raises(RunError, match="equal rewards 2"):
        paired(tmp_path, *some, min_margin=0.0)


def test_broken_attempts_are_not_paired(tmp_path: Path) -> None:
    broken = attempt("broken", -1.0, task="t", stop_reason=StopReason.BROKEN)
    late = attempt("late", 0.0, task="t", stop_reason=StopReason.DEADLINE)
    assert paired(tmp_path, broken, late, *tries(0.5, 1.0)) == [("t1.0", "t0.5")]


def test_attempts_with_different_prompts_or_tools_are_not_paired(tmp_path: Path) -> None:
    def under(name: str, reward: float, *before: str, **more: Any) -> Episode:
        messages = (*map(system, before), user("q"), model(name))
        return attempt(name, reward, task="t", messages=messages, **more)

    some = [
        under("brief", 1.0, "Be brief."),
        under("long", 0.0, "Be long."),
        under("plain", 0.5),
        under("tools", 0.1, tools=(GUESS,)),
        under("worse", 0.2),
    ]
    assert paired(tmp_path, *some) == [("plain", "worse")]


def test_ties_are_decided_by_length(tmp_path: Path) -> None:
    long = (user("What is t?"), model("Hm."), user("Well?"), model("No."))
    some = [
        attempt("long good", 1.0, task="t", messages=long),
        attempt("good", 1.0, task="t"),
        attempt("bad", 0.0, task="t"),
        attempt("long bad", 0.0, task="t", messages=(*long, user("x"))),
    ]
    assert paired(tmp_path, *some) == [("good", "bad")]


def test_a_row_has_prompt_tools_and_both_continuations(
    tmp_path: Path,
) -> None:
    prompt = (system("Play well."), user("Guess."))
    guess = model("First", call("guess", {"word": "owl"}, "x"), reasoning="Birds.")
    good = attempt(
        "good",
        1.0,
        task="t",
        tools=(GUESS,),
        messages=(*prompt, guess, tool_result("no", "x"), model("elk"), tool_result("yes", "y")),
    )
    bad = attempt("bad", 0.0, task="t", tools=(GUESS,), messages=(*prompt, model("ant")))
    curate_episodes(tmp_path, bad, good, to="dpo")
    assert read_rows(tmp_path / "out" / "train.jsonl") == [
        {
            "prompt": [
                {"role": "system", "content": "Play well."},
                {"role": "user", "content": "Guess."},
            ],
            "chosen": [
                {
                    "role": "assistant",
                    "content": "First",
                    "reasoning_content": "Birds.",
                    "tool_calls": [
                        {
                            "id": "x",
                            "type": "function",
                            "function": {"name": "guess", "arguments": {"word": "owl"}},
                        }
                    ],
                },
                {"role": "tool", "content": "no", "tool_call_id": "x"},
                {"role": "assistant", "content": "elk"},
            ],
            "rejected": [{"role": "assistant", "content": "ant"}],
            "tools": [GUESS],
            "environment": "quiz",
            "group_id": "t",
            "chosen_id": "good",
            "rejected_id": "bad",
            "chosen_reward": 1.0,
            "rejected_reward": 0.0,
        }
    ]


def test_call_ids_in_the_prompt_are_ignored(tmp_path: Path) -> None:
    some = [
        attempt(
            name, reward, task="t", messages=(user("q"), tool_result("hint", name), model(name))
        )
        for name, reward in (("a", 1.0), ("b", 0.0))
    ]
    assert paired(tmp_path, *some) == [("a", "b")]


def test_an_unusable_attempt_excludes_only_its_own_pairs(
    tmp_path: Path,
) -> None:
    torn = attempt("torn", 0.0, task="t", messages=(user("What is t?"), model("", call("f", "{"))))
    pair = tries(0.0, 1.0, task="u")
    report = curate_episodes(tmp_path, torn, *tries(1.0), *pair, to="dpo")
    assert report.left_out == {"malformed call": 1, "in no pair": 1}
    assert (report.kept, report.rows) == (2, {"train": 1})


@pytest.mark.parametrize("margin", [-0.1, float("nan"), float("inf")])
def test_the_margin_must_be_a_finite_number_of_at_least_0(tmp_path: Path, margin: float) -> None:
    with pytest.raises(ConfigError, match="min_margin"):
        paired(tmp_path, *tries(0.0, 1.0), min_margin=margin)


def test_unscored_attempts_cannot_be_paired(tmp_path: Path) -> None:
    some = [attempt("a", None, task="t"), *tries(0.0, 1.0)]
    with pytest.raises(ConfigError, match="keep_unscored"):
        paired(tmp_path, *some, keep_unscored=True)


def test_best_of_group_leaves_no_pairs() -> None:
    with pytest.raises(ConfigError):
        CurateConfig(to="dpo", best_of_group=True)


def test_both_sides_of_a_pair_may_come_from_different_runs(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(reward), *tries(reward)) for reward in (0.0, 1.0)]
    curate(runs, tmp_path / "out", CurateConfig(to="dpo"))
    assert read_rows(tmp_path / "out" / "train.jsonl")[0]["rejected_id"] == "t0.0"


SPOKEN = (user("Guess."), model("", call("guess", {"word": "elk"}, "a")))


@pytest.mark.parametrize(
    ("better", "worse", "options"),
    [
        ((*SPOKEN, tool_result("yes", "a")), (*SPOKEN, tool_result("no", "a")), {}),
        (
            (user("Guess."), model("elk", reasoning="A deer.")),
            (user("Guess."), model("elk", reasoning="Hm.")),
            {"reasoning": False},
        ),
        (
            (user("Guess."), model("", call("guess", '{"word":"elk"}', "a"))),
            (user("Guess."), model("", call("guess", '{"word": "elk"}', "b"))),
            {},
        ),
    ],
    ids=["last tool result", "reasoning", "spaces in arguments"],
)
def test_attempts_with_equal_rows_are_not_paired(
    tmp_path: Path, better: Any, worse: Any, options: dict[str, Any]
) -> None:
    some = [
        attempt("good", 1.0, task="t", messages=better),
        attempt("bad", 0.0, task="t", messages=worse),
    ]
    report = curate_episodes(tmp_path, *some, *tries(0.0, 1.0, task="u"), to="dpo", **options)
    assert report.rows == {"train": 1}
    assert report.left_out == {"equal sides": 2}


def in_a_game(name: str, reward: float, *, task: str) -> Episode:
    """Build an attempt at a task with the same prompt as all others."""
    return attempt(name, reward, task=task, messages=(user("Play."), model(name.partition("-")[0])))


def moves(tasks: int, *played: tuple[str, float]) -> list[Episode]:
    """Build attempts with the same moves at each task."""
    return [
        in_a_game(f"{move}-{task}", reward, task=f"t{task}")
        for task in range(tasks)
        for move, reward in played
    ]


def test_attempts_are_paired_before_duplicates_of_other_tasks_are_excluded(tmp_path: Path) -> None:
    some = [
        in_a_game("left-1", 1.0, task="a"),
        in_a_game("right-1", 0.0, task="a"),
        in_a_game("left-2", 0.0, task="b"),
        in_a_game("stay-2", 1.0, task="b"),
        in_a_game("right-3", 1.0, task="c"),
        in_a_game("stay-3", 0.0, task="c"),
    ]
    assert paired(tmp_path, *some) == [
        ("left-1", "right-1"),
        ("stay-2", "left-2"),
        ("right-3", "stay-3"),
    ]


def test_the_first_of_equal_pairs_is_kept(tmp_path: Path) -> None:
    report = curate_episodes(tmp_path, *moves(5, ("left", 1.0), ("right", 0.0)), to="dpo")
    assert (report.rows, report.left_out) == ({"train": 1}, {"duplicate pair": 8})


def test_equal_pairs_are_kept_without_dedupe(tmp_path: Path) -> None:
    report = curate_episodes(
        tmp_path, *moves(5, ("left", 1.0), ("right", 0.0)), to="dpo", dedupe=False
    )
    assert (report.rows, report.left_out) == ({"train": 5}, {})


@pytest.mark.parametrize("dedupe", [True, False])
def test_the_sides_of_a_pair_always_differ(tmp_path: Path, dedupe: bool) -> None:
    some = moves(1, ("left", 1.0), ("right", 0.5))
    copy = in_a_game("left-again", 0.0, task="t0")
    assert paired(tmp_path, *some, copy, dedupe=dedupe) == [("left-0", "right-0")]


def test_the_error_names_duplicates_that_leave_no_pairs(tmp_path: Path) -> None:
    some = [in_a_game(f"left-{at}", at % 2, task=f"t{at // 2}") for at in range(10)]
    with pytest.raises(RunError, match=r"duplicate 5, alone 5.*--temperature"):
        paired(tmp_path, *some)


def test_the_error_names_duplicate_pairs_that_leave_nothing_to_split(tmp_path: Path) -> None:
    some = moves(5, ("left", 1.0), ("right", 0.0))
    with pytest.raises(ConfigError, match=r"4 more.*`dedupe=False`"):
        curate_episodes(tmp_path, *some, to="dpo", test_size=0.5)
