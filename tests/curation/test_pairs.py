"""Preference pairs: which attempts make one, and what is in its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curation.attempts import GUESS, attempt, call, curated, model, rows, run_of, system, told, user
from ludus.curation import CurateConfig, FilterConfig, RowConfig, curate
from ludus.data.episode import Episode, StopReason
from ludus.errors import ConfigError, RunError


def paired(folder: Path, *episodes: Episode, **how: Any) -> list[tuple[str, str]]:
    """The ids of chosen and rejected, in the order of the rows."""
    curated(folder, *episodes, to="dpo", **how)
    found = rows(folder / "out" / "train.jsonl")
    return [(row["chosen_id"], row["rejected_id"]) for row in found]


def tries(*rewards: float, task: str = "t") -> list[Episode]:
    return [attempt(f"{task}{reward}", reward, task=task) for reward in rewards]


def test_the_best_attempt_at_a_task_is_paired_with_the_worst(tmp_path: Path) -> None:
    some = [*tries(0.5, 0.0, 1.0), *tries(0.2, 0.9, task="u")]
    assert paired(tmp_path, *some) == [("t1.0", "t0.0"), ("u0.9", "u0.2")]


def test_or_every_two_that_lie_far_enough_apart(tmp_path: Path) -> None:
    found = paired(tmp_path, *tries(0.0, 0.5, 0.6, 1.0), pairing="all", min_margin=0.5)
    assert found == [("t0.5", "t0.0"), ("t0.6", "t0.0"), ("t1.0", "t0.0"), ("t1.0", "t0.5")]


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.3), (0.1, 0.2), (0.7, 0.8), (-0.1, 0.0)])
def test_what_floats_do_to_a_margin_does_not_matter(
    tmp_path: Path, low: float, high: float
) -> None:
    assert len(paired(tmp_path, *tries(low, high), min_margin=0.1)) == 1


def test_every_attempt_that_is_in_no_pair_is_told_why(tmp_path: Path) -> None:
    some = [
        *tries(0.0, 0.5, 1.0, task="pair"),
        *tries(1.0, task="alone"),
        attempt("e1", 0.5, task="equal"),
        attempt("e2", 0.5, task="equal"),
        *tries(0.5, 0.55, task="close"),
    ]
    report = curated(tmp_path, *some, to="dpo")
    assert report.left_out == {"alone": 1, "equal rewards": 2, "min-margin": 2, "in no pair": 1}
    assert (report.kept, report.rows) == (2, {"train": 1})


def test_equal_rewards_make_no_pair_even_without_a_margin(tmp_path: Path) -> None:
    some = [attempt("a", 0.5, task="t"), attempt("b", 0.5, task="t")]
    with pytest.raises(RunError, match="equal rewards 2"):
        paired(tmp_path, *some, min_margin=0.0)


def test_a_broken_attempt_is_never_the_rejected_one(tmp_path: Path) -> None:
    broken = attempt("broken", -1.0, task="t", stop_reason=StopReason.BROKEN)
    late = attempt("late", 0.0, task="t", stop_reason=StopReason.DEADLINE)
    assert paired(tmp_path, broken, late, *tries(0.5, 1.0)) == [("t1.0", "t0.5")]


def test_attempts_that_were_asked_otherwise_are_not_at_the_same_task(tmp_path: Path) -> None:
    def under(name: str, reward: float, *before: str, **more: Any) -> Episode:
        said = (*map(system, before), user("q"), model(name))
        return attempt(name, reward, task="t", messages=said, **more)

    some = [
        under("brief", 1.0, "Be brief."),
        under("long", 0.0, "Be long."),
        under("plain", 0.5),
        under("tools", 0.1, tools=(GUESS,)),
        under("worse", 0.2),
    ]
    assert paired(tmp_path, *some) == [("plain", "worse")]


def test_the_shorter_of_two_best_is_chosen_and_of_two_worst_rejected(tmp_path: Path) -> None:
    long = (user("What is t?"), model("Hm."), user("Well?"), model("No."))
    some = [
        attempt("long good", 1.0, task="t", messages=long),
        attempt("good", 1.0, task="t"),
        attempt("bad", 0.0, task="t"),
        attempt("long bad", 0.0, task="t", messages=(*long, user("x"))),
    ]
    assert paired(tmp_path, *some) == [("good", "bad")]


def test_a_row_has_what_was_asked_the_tools_and_both_ways_up_to_the_last_reply(
    tmp_path: Path,
) -> None:
    prompt = (system("Play well."), user("Guess."))
    guess = model("First", call("guess", {"word": "owl"}, "x"), thought="Birds.")
    good = attempt(
        "good",
        1.0,
        task="t",
        tools=(GUESS,),
        messages=(*prompt, guess, told("no", "x"), model("elk"), told("yes", "y")),
    )
    bad = attempt("bad", 0.0, task="t", tools=(GUESS,), messages=(*prompt, model("ant")))
    curated(tmp_path, bad, good, to="dpo")
    assert rows(tmp_path / "out" / "train.jsonl") == [
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


def test_answers_that_stand_in_a_prompt_may_have_ids_of_their_own(tmp_path: Path) -> None:
    some = [
        attempt(name, reward, task="t", messages=(user("q"), told("hint", name), model(name)))
        for name, reward in (("a", 1.0), ("b", 0.0))
    ]
    assert paired(tmp_path, *some) == [("a", "b")]


def test_a_side_that_turns_out_to_be_no_row_takes_its_pairs_along_and_no_others(
    tmp_path: Path,
) -> None:
    torn = attempt("torn", 0.0, task="t", messages=(user("What is t?"), model("", call("f", "{"))))
    pair = tries(0.0, 1.0, task="u")
    report = curated(tmp_path, torn, *tries(1.0), *pair, to="dpo")
    assert report.left_out == {"malformed call": 1, "in no pair": 1}
    assert (report.kept, report.rows) == (2, {"train": 1})


@pytest.mark.parametrize("margin", [-0.1, float("nan"), float("inf")])
def test_a_margin_that_cannot_be_is_refused(tmp_path: Path, margin: float) -> None:
    with pytest.raises(ConfigError, match="--min-margin"):
        paired(tmp_path, *tries(0.0, 1.0), min_margin=margin)


def test_what_has_no_reward_cannot_be_paired(tmp_path: Path) -> None:
    some = [attempt("a", None, task="t"), *tries(0.0, 1.0)]
    with pytest.raises(ConfigError, match="--unscored is not for pairs"):
        paired(tmp_path, *some, selection=FilterConfig(unscored=True))


@pytest.mark.parametrize(
    "wrong",
    [
        {"selection": FilterConfig(best_of_group=True)},
        {"form": RowConfig(last_turn=True)},
    ],
)
def test_settings_that_leave_no_pairs_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CurateConfig(to="dpo", **wrong)


def test_both_sides_of_a_pair_may_come_from_different_runs(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / str(reward), *tries(reward)) for reward in (0.0, 1.0)]
    curate(runs, tmp_path / "out", CurateConfig(to="dpo"))
    assert rows(tmp_path / "out" / "train.jsonl")[0]["rejected_id"] == "t0.0"


SPOKEN = (user("Guess."), model("", call("guess", {"word": "elk"}, "a")))


@pytest.mark.parametrize(
    ("better", "worse", "form"),
    [
        ((*SPOKEN, told("yes", "a")), (*SPOKEN, told("no", "a")), RowConfig()),
        (
            (user("Guess."), model("elk", thought="A deer.")),
            (user("Guess."), model("elk", thought="Hm.")),
            RowConfig(reasoning=False),
        ),
        (
            (*SPOKEN, told("warm", "a"), model("Fine.")),
            (*SPOKEN, told("cold", "a"), model("Fine.")),
            RowConfig(tool_results=False),
        ),
        (
            (user("Guess."), model("", call("guess", '{"word":"elk"}', "a"))),
            (user("Guess."), model("", call("guess", '{"word": "elk"}', "b"))),
            RowConfig(),
        ),
    ],
    ids=["the last answer of a tool", "reasoning", "results", "spaces in arguments"],
)
def test_two_attempts_that_say_the_same_are_no_pair(
    tmp_path: Path, better: Any, worse: Any, form: RowConfig
) -> None:
    some = [
        attempt("good", 1.0, task="t", messages=better),
        attempt("bad", 0.0, task="t", messages=worse),
    ]
    report = curated(tmp_path, *some, *tries(0.0, 1.0, task="u"), to="dpo", form=form)
    assert report.rows == {"train": 1}
    assert report.left_out == {"equal sides": 2}


def in_a_game(name: str, reward: float, *, task: str) -> Episode:
    """An attempt at a task that its messages do not tell from any other."""
    return attempt(name, reward, task=task, messages=(user("Play."), model(name.partition("-")[0])))


def moves(tasks: int, *played: tuple[str, float]) -> list[Episode]:
    """The same moves at each of so many tasks."""
    return [
        in_a_game(f"{move}-{task}", reward, task=f"t{task}")
        for task in range(tasks)
        for move, reward in played
    ]


def test_attempts_are_paired_before_copies_at_other_tasks_are_left_out(tmp_path: Path) -> None:
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


def test_of_equal_pairs_the_first_stays_and_the_others_are_counted(tmp_path: Path) -> None:
    report = curated(tmp_path, *moves(5, ("left", 1.0), ("right", 0.0)), to="dpo")
    assert (report.rows, report.left_out) == ({"train": 1}, {"duplicate pair": 8})


def test_equal_pairs_stay_where_copies_may(tmp_path: Path) -> None:
    report = curated(tmp_path, *moves(5, ("left", 1.0), ("right", 0.0)), to="dpo", dedupe=False)
    assert (report.rows, report.left_out) == ({"train": 5}, {})


@pytest.mark.parametrize("dedupe", [True, False])
def test_a_pair_never_says_the_same_twice(tmp_path: Path, dedupe: bool) -> None:
    some = moves(1, ("left", 1.0), ("right", 0.5))
    copy = in_a_game("left-again", 0.0, task="t0")
    assert paired(tmp_path, *some, copy, dedupe=dedupe) == [("left-0", "right-0")]


def test_attempts_that_all_say_the_same_are_told_as_the_reason(tmp_path: Path) -> None:
    some = [in_a_game(f"left-{at}", at % 2, task=f"t{at // 2}") for at in range(10)]
    with pytest.raises(RunError, match=r"duplicate 5, alone 5.*word for word.*--temperature"):
        paired(tmp_path, *some)


def test_pairs_of_which_all_but_one_are_copies_name_the_way_to_split_them(tmp_path: Path) -> None:
    some = moves(5, ("left", 1.0), ("right", 0.0))
    with pytest.raises(ConfigError, match=r"4 more .* exact copies .*--no-dedupe"):
        curated(tmp_path, *some, to="dpo", test=0.5)
