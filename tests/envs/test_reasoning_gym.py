"""The reasoning_gym environment: its questions, its scores, and the library in its process."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from ludus.client.env_client import EnvClient
from ludus.environment.host import Host
from ludus.environment.registry import find
from ludus.envs.reasoning_gym import (
    ReasoningGym,
    ReasoningGymAction,
    ReasoningGymEnv,
    ReasoningGymObservation,
    children,
    library,
)
from ludus.envs.reasoning_gym.answers import UNREADABLE, scorable
from ludus.envs.reasoning_gym.programs import repeatable
from ludus.errors import EnvironmentNotFound, ExecutionFailed, InvalidAction
from ludus.protocol.render import render
from ludus.protocol.types import Observation

SENSITIVE = (
    "codeio",
    "intermediate_integration",
    "isomorphic_strings",
    "knight_swap",
    "list_functions",
    "polynomial_multiplication",
    "pool_matrix",
    "ransom_note",
    "time_intervals",
    "word_ladder",
)
"""Data sets in which the library draws on more than the seed: on the hash seed, on the global
random numbers or on the date."""


def hosted(spec: str, *requests: tuple[str, Mapping[str, Any]]) -> list[Observation]:
    """What a host of `spec` replies to resets and steps."""

    async def talk() -> list[Observation]:
        host = Host(find(spec))
        await host.start()
        seen = []
        for kind, data in requests:
            seen.append(await (host.reset(data) if kind == "reset" else host.step(data)))
        await host.close()
        return seen

    return asyncio.run(talk())


def question(variant: str | None = None, **task: Any) -> str:
    asked = ReasoningGym(variant).reset(**task).question
    assert asked
    return asked


def oracle_score(variant: str, **task: Any) -> float | None:
    environment = ReasoningGym(variant)
    environment.reset(**task)
    action = environment.oracle()
    assert action is not None
    return environment.step(action).score


def score(variant: str, answer: str, **task: Any) -> float | None:
    environment = ReasoningGym(variant)
    environment.reset(**task)
    return environment.step(ReasoningGymAction(answer=answer)).score


# Resets


def test_a_reset_without_arguments_asks_the_next_question_and_after_the_last_the_first() -> None:
    environment = ReasoningGym("gcd")
    asked = [environment.reset(seed=3, size=3).question]
    asked += [environment.reset().question for _ in range(4)]
    assert len(set(asked)) == 3
    assert asked[3:] == asked[:2]


@pytest.mark.parametrize("task", [{"seed": 3}, {"size": 5, "seed": 3}, {"dataset_name": "gcd"}])
def test_any_argument_begins_the_data_set_anew(task: dict[str, Any]) -> None:
    environment = ReasoningGym("gcd")
    environment.reset(seed=8)
    environment.reset()
    environment.reset(**task)
    assert environment.state.model_dump()["index"] == 0


def test_a_reset_does_not_remember_the_config_of_the_one_before() -> None:
    environment = ReasoningGym("chain_sum")
    environment.reset(seed=1, dataset_config={"min_digits": 9, "max_digits": 9})
    assert environment.reset(seed=1).question == question("chain_sum", seed=1)


def test_a_reset_that_fails_leaves_the_data_set_as_it_was() -> None:
    environment = ReasoningGym("gcd")
    environment.reset(seed=3, size=3)
    with pytest.raises(ValueError, match="no data set"):
        environment.reset(dataset_name="nonsense")
    assert environment.reset().question == question("gcd", seed=4)


def test_the_first_reset_without_arguments_draws_a_seed_and_tells_it() -> None:
    environment = ReasoningGym("gcd")
    asked = environment.reset().question
    state = environment.state.model_dump()
    assert (state["dataset_name"], state["size"], state["index"]) == ("gcd", 1000, 0)
    assert asked == question("gcd", seed=state["seed"])


def test_the_variant_is_the_data_set_and_the_bare_name_is_chain_sum() -> None:
    assert question(seed=7) == question("chain_sum", seed=7)
    assert question("gcd", seed=7) == question(dataset_name="gcd", seed=7)
    assert question("gcd", seed=7) != question("chain_sum", seed=7)


def test_every_data_set_of_the_library_is_a_variant() -> None:
    variants = ReasoningGym.variants()
    assert len(variants) >= 106
    assert list(variants) == sorted(variants)
    with pytest.raises(EnvironmentNotFound, match="Did you mean 'chain_sum'"):
        find("reasoning_gym:chainsum")


def test_the_config_of_the_tutorials_makes_sums_of_two_or_three_numbers_of_two_digits() -> None:
    task = {
        "dataset_name": "chain_sum",
        "dataset_config": {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2},
        "seed": 999,
        "size": 50,
    }
    first, result, second = hosted(
        "reasoning_gym", ("reset", task), ("step", {"answer": 0}), ("reset", {})
    )
    assert isinstance(first, ReasoningGymObservation) and isinstance(
        second, ReasoningGymObservation
    )
    assert isinstance(result, ReasoningGymObservation)
    assert first.dataset_metadata and second.dataset_metadata
    assert first.question != second.question
    assert first.dataset_metadata["num_terms"] in (2, 3)
    assert result.correct_answer is not None and result.correct_answer.isdigit()


# Episodes


def test_a_right_answer_ends_the_episode_with_a_reward_of_one() -> None:
    environment = ReasoningGym("chain_sum")
    environment.reset(seed=7)
    action = environment.oracle()
    assert action is not None
    seen = environment.step(action)
    assert (seen.score, seen.reward, seen.done) == (1.0, 1.0, True)
    assert seen.correct_answer == action.answer
    assert environment.oracle() is None


def test_a_wrong_answer_is_worth_less_than_one() -> None:
    (_, seen) = hosted("reasoning_gym", ("reset", {"seed": 7}), ("step", {"answer": "no idea"}))
    assert seen.reward is not None and seen.reward < 0.1
    assert seen.done


def test_a_model_is_shown_the_question_and_then_the_score_and_nothing_else() -> None:
    asked, seen = hosted("reasoning_gym:gcd", ("reset", {"seed": 7}), ("step", {"answer": "1"}))
    assert render(asked.model_dump(mode="json")) == question("gcd", seed=7)
    assert render(seen.model_dump(mode="json")).splitlines() == [  # type: ignore[union-attr]
        f"score: {seen.reward}",
        f"correct_answer: {seen.model_dump()['correct_answer']}",
    ]


def test_the_tool_is_called_answer() -> None:
    contract = find("reasoning_gym")
    assert contract.tools is not None
    (tool,) = contract.tools
    assert (tool.name, tool.description) == ("answer", "Submit the final answer to the question.")
    assert tool.input_schema["properties"]["answer"]["description"].startswith("The final answer")


def test_the_client_is_typed() -> None:
    assert issubclass(ReasoningGymEnv, EnvClient)


# Seeds


def test_the_same_seed_asks_the_same_question_whatever_was_asked_before() -> None:
    seeds = range(4)
    forwards = {name: [question(name, seed=seed) for seed in seeds] for name in SENSITIVE}
    backwards = {
        name: [question(name, seed=seed) for seed in reversed(seeds)][::-1]
        for name in reversed(SENSITIVE)
    }
    assert forwards == backwards


def test_the_same_seed_asks_the_same_question_in_every_process() -> None:
    program = (
        "import json, sys\n"
        "from ludus.envs.reasoning_gym import ReasoningGym\n"
        "shown = [ReasoningGym(name).reset(seed=seed).model_dump(mode='json')\n"
        f"         for name in {SENSITIVE!r} for seed in range(4)]\n"
        "print(json.dumps(shown))\n"
    )

    def shown(environ: Mapping[str, str]) -> list[Any]:
        command = [sys.executable, "-c", program]
        ran = subprocess.run(
            command, env={**os.environ, **environ}, check=True, capture_output=True
        )
        return list(json.loads(ran.stdout))

    worlds: Sequence[dict[str, str]] = (
        {"PYTHONHASHSEED": "1"},
        {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
    )
    with ThreadPoolExecutor() as pool:
        one, other = pool.map(shown, worlds)
    assert len(one) == 4 * len(SENSITIVE)
    assert one == other


def test_a_question_has_the_same_index_in_a_data_set_that_is_used_out_of_order() -> None:
    environment = ReasoningGym("word_sorting")
    asked = [environment.reset(seed=5, size=4).question]
    asked += [environment.reset().question for _ in range(3)]
    question("word_sorting", seed=77)
    assert [environment.reset().question for _ in range(4)] == asked


def test_two_configs_of_codeio_do_not_share_their_programs() -> None:
    easy = ReasoningGym("codeio")
    easy.reset(seed=1, dataset_config={"difficulty": 3})
    second = easy.reset().question
    easy.reset(seed=1, dataset_config={"difficulty": 3})
    question("codeio", seed=1, dataset_config={"difficulty": 7})
    assert easy.reset().question == second


def test_the_global_random_numbers_are_left_alone() -> None:
    before = random.getstate()
    assert oracle_score("list_functions", seed=1) == 1.0
    assert random.getstate() == before


def test_importing_the_environment_does_not_import_the_library() -> None:
    program = (
        "import sys\n"
        "from ludus.envs.reasoning_gym import ReasoningGym\n"
        "ReasoningGym('gcd').reset(seed=1)\n"
        "assert not {'reasoning_gym', 'sympy', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# Perfect answers


def losses(seeds: range) -> dict[str, list[int]]:
    """The seeds, by variant, on which the oracle earns less than 1.0."""

    def lost(name: str) -> list[int]:
        return [seed for seed in seeds if oracle_score(name, seed=seed) != 1.0]

    with ThreadPoolExecutor(children.MOST_CHILDREN) as pool:
        variants = ReasoningGym.variants()
        found = dict(zip(variants, pool.map(lost, variants), strict=True))
    return {name: lost for name, lost in found.items() if lost}


def test_the_oracle_earns_the_top_reward_in_every_variant() -> None:
    assert losses(range(3)) == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_oracle_earns_the_top_reward_in_every_variant_on_200_seeds() -> None:
    assert losses(range(200)) == {}


@pytest.mark.parametrize(
    ("variant", "seed"),
    [
        ("base_conversion", 1514),
        ("intermediate_integration", 5),
        ("propositional_logic", 159),
        ("string_manipulation", 1168),
    ],
)
def test_a_question_whose_right_answer_the_library_would_refuse_is_not_asked(
    variant: str, seed: int
) -> None:
    assert oracle_score(variant, seed=seed) == 1.0


def test_a_sequence_that_would_grow_without_bound_is_not_computed() -> None:
    assert oracle_score("number_sequence", seed=163) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_the_planner_brings_many_boxes_of_a_colour_to_their_targets(seed: int) -> None:
    config = {"min_box_num": 2, "max_box_num": 6, "max_row_num": 3, "max_column_num": 3}
    assert oracle_score("boxnet", seed=seed, dataset_config=config) == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_the_solver_finds_its_way_out_of_the_hardest_boards(seed: int) -> None:
    assert oracle_score("rush_hour", seed=seed, dataset_config={"min_moves": 40}) == 1.0


# Configs


def test_an_unknown_data_set_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"no data set 'chainsum'\. Did you mean 'chain_sum'\?"):
        question(dataset_name="chainsum")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_trems": 3}, r"has no field 'max_trems'\. Did you mean 'max_terms'\?"),
        ({"colour": 3}, r"has no field 'colour'\. Its fields: .*max_terms.*min_digits"),
        ({"min_terms": 5, "max_terms": 2}, r"max_terms must be >= min_terms\. Its fields: "),
        ({"min_terms": "many"}, r"chain_sum does not take this dataset_config: .*'str' and 'int'"),
        ({"seed": 3}, "seed and size are arguments of reset"),
    ],
)
def test_a_config_that_the_library_refuses_is_an_error_that_says_why(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        question("chain_sum", dataset_config=config)


def test_a_size_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one question"):
        question(size=0)


def test_over_a_host_the_same_mistakes_are_errors_of_the_wire() -> None:
    with pytest.raises(ExecutionFailed, match="Did you mean 'max_terms'"):
        hosted("reasoning_gym", ("reset", {"dataset_config": {"max_trems": 3}}))
    with pytest.raises(InvalidAction, match="seed"):
        hosted("reasoning_gym", ("reset", {"seed": "seven"}))


def test_a_config_may_hold_what_json_has_no_type_for() -> None:
    dates = {"min_date": "2001-01-01", "max_date": "2003-01-01", "task_types": ["date"]}
    dated = ReasoningGym("time_intervals").reset(seed=1, dataset_config=dates)
    assert dated.dataset_metadata
    assert dated.dataset_metadata["start_time"][:4] in ("2001", "2002")
    boards = {"board_format_opts": {"col_delimiter": "|"}}
    assert "|" in question("rearc", seed=1, dataset_config=boards)


def test_a_composite_mixes_what_it_is_told_to_mix() -> None:
    def sources(config: dict[str, Any]) -> set[str]:
        environment = ReasoningGym("composite")
        seen = [environment.reset(seed=1, dataset_config=config)]
        seen += [environment.reset() for _ in range(30)]
        return {str(one.dataset_metadata["source_dataset"]) for one in seen if one.dataset_metadata}

    assert sources({}) == {"chain_sum", "letter_counting", "spell_backward"}
    parts = ["gcd", {"name": "lcm", "weight": 2.0, "config": {"max_numbers": 2}}]
    assert sources({"datasets": parts}) == {"gcd", "lcm"}


def test_every_observation_is_json() -> None:
    for name in ReasoningGym.variants():
        seen = ReasoningGym(name).reset(seed=2)
        assert json.loads(to_json(seen)) == seen.model_dump()


def test_a_time_of_day_is_not_dated_today() -> None:
    times = {"task_types": ["time"]}
    seen = ReasoningGym("time_intervals").reset(seed=1, dataset_config=times)
    assert seen.dataset_metadata
    assert len(seen.dataset_metadata["start_time"]) == len("12:34:00")


# Answers


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
    assert scorable(answer, source) == answer


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("countdown", "__import__('os').system('true')"),
        ("countdown", "(open)('trace')"),
        ("countdown", "open('trace')!"),
        ("countdown", "[0] * 10**10"),
        ("countdown", "'a' * 10**10"),
        ("intermediate_integration", "Integral(x**2, x)"),
        ("n_queens", "[exit()]"),
        ("n_queens", "  [x for x in (exit,)]"),
        ("spiral_matrix", "[0] * 10**10 != 1"),
        ("spiral_matrix", "f'{exit()}'"),
        ("string_insertion", "(lambda: 1)()"),
        ("puzzle24", "(" * 10_000),
    ],
)
def test_a_scorer_is_not_given_an_answer_that_could_do_something(source: str, answer: str) -> None:
    assert scorable(answer, source) == UNREADABLE


def test_an_answer_that_the_scorer_chokes_on_is_worth_nothing() -> None:
    assert score("boxnet", "5", seed=1) == 0.0


def test_an_answer_that_takes_for_ever_is_worth_nothing_and_the_next_one_is_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "SCORE_LIMIT", 0.5)
    assert score("puzzle24", "9**9**9**9", seed=1) == 0.0
    monkeypatch.setattr(library, "SCORE_LIMIT", 10.0)
    assert oracle_score("puzzle24", seed=1) == 1.0


def test_a_question_that_takes_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "QUESTION_LIMIT", 0.05)
    board = {"min_board_size": 9, "max_board_size": 9}
    with pytest.raises(ValueError, match=r"futoshiki made no question in 0\.05 s"):
        question("futoshiki", seed=1, dataset_config=board)


def test_sessions_at_once_do_not_get_in_each_others_way() -> None:
    def play(seed: int) -> list[float | None]:
        return [oracle_score(name, seed=seed) for name in ("gcd", "pool_matrix", "word_sorting")]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, range(16))) == [[1.0, 1.0, 1.0]] * 16


@pytest.mark.parametrize(
    "code",
    ["x = datetime.now()", "return time.time()", "os.remove(path)", "Random()", "id(node)"],
)
def test_programs_that_reach_out_are_not_asked_about(code: str) -> None:
    kept = {
        "code_sample": "def main(a): return a + len('times')",
        "input_generator": "rng.random()",
    }
    assert repeatable([kept, {**kept, "code_sample": code}]) == [kept]
