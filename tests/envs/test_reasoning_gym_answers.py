"""Answers are scored, and never run; what takes for ever is ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envs.questions import ENDLESS, oracle_score, question, score
from ludus.envs.reasoning_gym import ReasoningGym, ReasoningGymAction
from ludus.envs.reasoning_gym import environment as library
from ludus.envs.reasoning_gym.scoring import UNPARSABLE_FORMULA, AnswerRefused, check_answer


@pytest.mark.parametrize("variant", ["countdown", "n_queens", "simple_integration"])
def test_an_answer_is_never_run(variant: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for attack in (f"open({str(trace)!r}, 'w')", f"[open({str(trace)!r}, 'w')]"):
        earned = score(variant, attack, seed=1)
        assert earned is not None and earned < 0.1
    assert not trace.exists()


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("countdown", "(82 + 20) * 67 - 50 / 3"),
        ("simple_integration", "3*X**2/2 + log(X) - 7*X + C"),
        ("n_queens", "_ Q _\nQ _ _\n_ _ Q"),
        ("n_queens", "[['_', 'Q'], ['Q', '_']]"),
        ("binary_matrix", " [[0, 1], [-1, 2]]"),
        ("string_insertion", "ABCDE"),
        ("chain_sum", "__import__('os')"),
    ],
)
def test_a_scorer_is_given_an_answer_that_is_a_list_or_a_formula(source: str, answer: str) -> None:
    assert check_answer(answer, source) == answer


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("countdown", "__import__('os').system('true')"),
        ("countdown", "(open)('trace')"),
        ("countdown", "[0] * 10**10"),
        ("countdown", "'a' * 10**10"),
        ("intermediate_integration", "Integral(x**2, x)"),
        ("n_queens", "[exit()]"),
        ("n_queens", "  [x for x in (exit,)]"),
        ("spiral_matrix", "[0] * 10**10 != 1"),
        ("spiral_matrix", "f'{exit()}'"),
        ("string_insertion", "(lambda: 1)()"),
    ],
)
def test_a_scorer_is_not_given_an_answer_that_could_do_something(source: str, answer: str) -> None:
    with pytest.raises(AnswerRefused, match="program"):
        check_answer(answer, source)


@pytest.mark.parametrize("answer", ["nan", "-Infinity", "[1, NaN]", "nan+nanj", "3 + infi"])
def test_a_number_that_is_not_finite_is_refused_unless_it_is_right(answer: str) -> None:
    with pytest.raises(AnswerRefused, match="finite"):
        check_answer(answer, "chain_sum", right="7")
    assert check_answer(answer, "word_sorting", right="info, nan, inf") == answer
    assert check_answer("banana, infinite", "word_sorting") == "banana, infinite"


@pytest.mark.parametrize("answer", ["open('trace')!", "(" * 9_000, "I think that it is 24."])
def test_a_formula_that_is_none_is_read_by_no_scorer(answer: str) -> None:
    assert check_answer(answer, "puzzle24") == UNPARSABLE_FORMULA


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("countdown", "1" + "+1" * 40_000),
        ("chain_sum", "9" * 100_001),
    ],
)
def test_an_answer_whose_size_can_be_seen_is_refused(source: str, answer: str) -> None:
    with pytest.raises(AnswerRefused):
        check_answer(answer, source)


@pytest.mark.parametrize(
    "answer",
    [
        "exp(-X**2/2)*sqrt(2*pi)/2 + C",
        "-exp(3*X)*sin(2*X)/13 + 3*exp(3*X)*cos(2*X)/13 + C",
        "X**12/12 - 1000000*X**9 + log(Abs(X + 1))**3",
        "2**X/log(2) + 2**(X**2/2)*erf(X) + C",
        "(3*X + 1)**(3/2)*2/9 + asin(X/5)",
    ],
)
def test_the_formulas_of_integrals_are_no_programs(answer: str) -> None:
    assert check_answer(answer, "intermediate_integration") == answer


def test_an_answer_that_the_scorer_chokes_on_is_worth_nothing() -> None:
    assert score("boxnet", "5", seed=1) == 0.0


def test_an_answer_that_takes_for_ever_is_worth_nothing_and_the_next_one_is_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "SCORE_TIMEOUT_S", 0.2)
    environment = ReasoningGym("simple_integration")
    environment.reset(seed=1)
    seen = environment.step(ReasoningGymAction(answer=ENDLESS))
    assert (seen.score, seen.reward, seen.done) == (0.0, 0.0, True)
    assert seen.note is not None and "0.2 s" in seen.note
    monkeypatch.setattr(library, "SCORE_TIMEOUT_S", 10.0)
    assert oracle_score("simple_integration", seed=1) == 1.0


def test_a_question_that_takes_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "QUESTION_TIMEOUT_S", 0.05)
    board = {"min_board_size": 9, "max_board_size": 9}
    with pytest.raises(ValueError, match=r"futoshiki .*0\.05 s"):
        question("futoshiki", seed=1, dataset_config=board)


def test_sessions_at_once_do_not_get_in_each_others_way() -> None:
    def play(seed: int) -> list[float | None]:
        return [oracle_score(name, seed=seed) for name in ("gcd", "pool_matrix", "word_sorting")]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, range(16))) == [[1.0, 1.0, 1.0]] * 16


def test_a_truth_value_is_right_only_if_it_is_the_one_that_was_asked_for() -> None:
    answers = ("True", " false", "maybe", "")
    right = [answer for answer in answers if score("game_of_life_halting", answer, seed=1) == 1.0]
    assert right in (["True"], [" false"])
    assert oracle_score("game_of_life_halting", seed=1) == 1.0
