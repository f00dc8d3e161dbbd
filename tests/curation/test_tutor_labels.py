"""Rows of episodes with a tutor or with random turns: the loss is on what is to be learned."""

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
)
from ludus.curation.labelled_turns import count_agreement
from ludus.curation.row_builders import sft_rows
from ludus.data.episode import Episode, StopReason
from ludus.data.messages import Message


def said(word: str, id: str = "call_0", text: str = "") -> Message:
    return model(text, call("guess", {"word": word}, id))


def guessed(
    *words: str,
    advice: tuple[str | Message | None, ...] = (),
    name: str = "e",
    reward: float | None = 0.0,
    **more: Any,
) -> Episode:
    """An episode in which the student guessed these words, and the tutor advised those."""
    messages = [system("Play."), user("Guess.")]
    for at, word in enumerate(words):
        messages += [said(word, f"s{at}"), tool_result(f"not {word}", f"s{at}")]
    replies = tuple(
        said(each, f"t{at}") if isinstance(each, str) else each for at, each in enumerate(advice)
    )
    return attempt(name, reward, messages=messages, tutor_replies=replies, tools=(GUESS,), **more)


def outline(row: dict[str, Any]) -> str:
    """The guesses of a row; those without loss in brackets."""
    words = []
    for message in row["messages"]:
        for each in message.get("tool_calls") or ():
            word = each["function"]["arguments"]["word"]
            words.append(f"({word})" if message.get("weight") == 0 else word)
    return " ".join(words)


def outlines(episode: Episode) -> list[str]:
    return [outline(row) for row in sft_rows(episode)]


def test_the_loss_is_where_both_agree_and_on_a_copy_of_each_correction() -> None:
    episode = guessed("owl", "cat", "elk", advice=("owl", "dog", "elk"))
    assert outlines(episode) == ["owl (cat) elk", "(owl) dog"]
    assert count_agreement(episode) == (2, 3)


def test_a_student_that_is_always_wrong_has_corrections_alone() -> None:
    episode = guessed("owl", "cat", advice=("elk", "dog"))
    assert outlines(episode) == ["elk", "(owl) dog"]


def test_what_follows_the_last_agreement_is_not_in_the_row() -> None:
    first, correction = sft_rows(guessed("owl", "cat", advice=("owl", "dog")))
    assert [message["role"] for message in first["messages"]] == ["system", "user", "assistant"]
    assert correction["messages"][-1]["tool_calls"][0]["id"] == "t1"


def test_where_both_agree_the_tutors_words_are_learned_under_the_ids_of_the_calls_made() -> None:
    episode = guessed("owl", "elk", advice=(said("owl", "t0", "It flies."), "elk"))
    (row,) = sft_rows(episode)
    assert row["messages"][2]["content"] == "It flies."
    assert row["messages"][2]["tool_calls"][0]["id"] == row["messages"][3]["tool_call_id"] == "s0"


def test_without_a_reply_of_the_tutor_a_turn_has_no_loss() -> None:
    assert outlines(guessed("owl", "cat", "elk", advice=("owl", None, "elk"))) == ["owl (cat) elk"]
    assert outlines(guessed("owl", advice=(None,))) == []


def test_nothing_is_learned_after_a_call_that_no_template_can_render() -> None:
    episode = guessed("owl", "cat", "elk", advice=("owl", "dog", "elk"), malformed_calls=1)
    messages = list(episode.messages)
    messages[4] = model("", call("guess", '{"word": "ca', "s1"))
    broken = episode.model_copy(update={"messages": tuple(messages)})
    assert outlines(broken) == ["owl", "(owl) dog"]


def test_a_student_that_says_nothing_is_told_what_to_call() -> None:
    assert outlines(guessed("owl", advice=("owl", "dog"))) == ["owl", "(owl) dog"]
    assert outlines(guessed(advice=("dog",))) == ["dog"]


def test_the_advice_must_be_a_call_that_a_template_can_render() -> None:
    bad = model("", call("guess", "not JSON"))
    assert outlines(guessed("owl", "cat", advice=(bad, "cat"))) == ["(owl) cat"]


@pytest.mark.parametrize(("said_by_both", "rows"), [("yes", 1), ("no", 1)])
def test_replies_without_calls_agree_where_they_say_the_same(said_by_both: str, rows: int) -> None:
    episode = attempt("e", messages=(user("?"), model("yes")), tutor_replies=(model(said_by_both),))
    assert count_agreement(episode) == (said_by_both == "yes", 1)
    assert len(sft_rows(episode)) == rows


def test_random_turns_have_no_loss() -> None:
    episode = guessed("owl", "cat", "elk", explored_turns=(1,))
    assert outlines(episode) == ["owl (cat) elk"]
    assert outlines(guessed("owl", explored_turns=(0,))) == []


def test_the_state_after_a_random_turn_is_labelled_too() -> None:
    episode = guessed("owl", "cat", advice=("elk", "cat"), explored_turns=(0,))
    assert outlines(episode) == ["(owl) cat", "elk"]


def test_filters_by_reward_are_for_the_agents_own_actions(tmp_path: Path) -> None:
    report = curate_episodes(
        tmp_path,
        guessed("owl", "cat", advice=("owl", "dog"), name="taught"),
        guessed("cow", advice=("pig",), name="unscored", reward=None),
        guessed("hen", name="bad"),
        guessed("elk", name="good", reward=1.0),
        min_reward=0.5,
        top_fraction=0.9,
        best_of_group=True,
    )
    rows = read_rows(tmp_path / "out" / "train.jsonl")
    assert [row["episode_id"] for row in rows] == ["taught", "taught", "unscored", "good"]
    assert (report.kept, report.left_out) == (3, {"min-reward": 1})
    assert (report.tutored, report.masked_rows) == (2, 1)
    assert report.agreement == pytest.approx(1 / 3)
    details = {step.reason: step.detail for step in report.steps}
    assert details["min-reward"] == "reward >= 0.5; not for 2 with a tutor"
    assert "agreed in 33.3% of the turns" in (tmp_path / "out" / "README.md").read_text()


def test_other_filters_apply_to_all_episodes(tmp_path: Path) -> None:
    episodes = [
        guessed("owl", advice=("elk",), name="short"),
        guessed("owl", "cat", advice=("elk", "elk"), name="long"),
        guessed("cow", advice=("elk",), name="broken", stop_reason=StopReason.BROKEN, reward=None),
    ]
    report = curate_episodes(tmp_path, *episodes, where="turns < 2")
    assert report.left_out == {"broken": 1, "where": 1}


def test_an_episode_is_left_out_where_no_row_of_it_is_new_or_has_loss(tmp_path: Path) -> None:
    report = curate_episodes(
        tmp_path,
        guessed("owl", "cat", advice=("owl", "dog"), name="first"),
        guessed("owl", "elk", advice=("owl", "dog"), name="same"),
        guessed("cow", advice=(None,), name="silent"),
        guessed("hen", explored_turns=(0,), name="random"),
    )
    assert report.left_out == {"duplicate": 1, "no loss": 2}
    assert report.rows == {"train": 2}


def test_episodes_are_paired_by_their_rewards(tmp_path: Path) -> None:
    report = curate_episodes(
        tmp_path,
        guessed("hen", advice=("cow",), name="better", task="t", reward=1.0),
        guessed("pig", advice=("cow",), name="worse", task="t"),
        to="dpo",
    )
    (row,) = read_rows(tmp_path / "out" / "train.jsonl")
    sides = [outline({"messages": row[side]}) for side in ("chosen", "rejected")]
    assert (sides, report.tutored) == (["hen", "pig"], 0)


def test_episodes_pass_on_as_they_are_and_by_their_reward(tmp_path: Path) -> None:
    taught = guessed("owl", advice=("elk",), name="taught")
    good = guessed("elk", advice=("elk",), name="good", reward=1.0)
    report = curate_episodes(tmp_path, taught, good, to="episodes", min_reward=0.5)
    (line,) = (tmp_path / "out" / "train.jsonl").read_bytes().splitlines()
    assert Episode.from_line(line) == good and report.tutored == 0
