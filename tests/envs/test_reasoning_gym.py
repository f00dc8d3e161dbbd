"""The reasoning_gym environment: its questions, its settings, and what a model is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_core import to_json

from envs.questions import hosted, question
from ludus.client.env_client import EnvClient
from ludus.environment.registry import find_environment
from ludus.envs.reasoning_gym import (
    ReasoningGym,
    ReasoningGymAction,
    ReasoningGymEnv,
    ReasoningGymObservation,
)
from ludus.errors import EnvironmentNotFound, ExecutionFailed, InvalidAction
from ludus.protocol.observation_text import render_observation


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


def test_data_sets_of_the_library_are_variants() -> None:
    variants = ReasoningGym.variants()
    assert len(variants) >= 103
    assert not {"codeio", "composite", "propositional_logic"} & {*variants}
    assert list(variants) == sorted(variants)
    with pytest.raises(EnvironmentNotFound, match="'chain_sum'"):
        find_environment("reasoning_gym:chainsum")


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
    call = environment.oracle()
    assert call is not None
    seen = environment.step(ReasoningGymAction(**call.arguments))
    assert (seen.score, seen.reward, seen.done) == (1.0, 1.0, True)
    assert seen.correct_answer == call.arguments["answer"]
    assert environment.oracle() is None


def test_a_wrong_answer_is_worth_less_than_one() -> None:
    (_, seen) = hosted("reasoning_gym", ("reset", {"seed": 7}), ("step", {"answer": "no idea"}))
    assert seen.reward is not None and seen.reward < 0.1
    assert seen.done


def test_a_model_is_shown_the_question_and_then_the_score_and_nothing_else() -> None:
    asked, seen = hosted("reasoning_gym:gcd", ("reset", {"seed": 7}), ("step", {"answer": "1"}))
    assert render_observation(asked.model_dump(mode="json")) == question("gcd", seed=7)
    assert render_observation(seen.model_dump(mode="json")).splitlines() == [  # type: ignore[union-attr]
        f"score: {seen.reward}",
        f"correct_answer: {seen.model_dump()['correct_answer']}",
    ]


def test_the_tool_is_called_answer() -> None:
    contract = find_environment("reasoning_gym")
    assert contract.tools is not None
    (tool,) = contract.tools
    assert tool.name == "answer" and "final answer" in tool.description
    assert tool.input_schema["properties"]["answer"]["description"].startswith("The final answer")


def test_the_client_is_typed() -> None:
    assert issubclass(ReasoningGymEnv, EnvClient)


# Seeds


def test_an_unknown_data_set_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"'chainsum'.*'chain_sum'"):
        question(dataset_name="chainsum")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_trems": 3}, r"'max_trems'.*'max_terms'"),
        ({"colour": 3}, r"'colour'.*max_terms.*min_digits"),
        ({"min_terms": 5, "max_terms": 2}, r"max_terms .*min_terms.*min_digits"),
        ({"min_terms": "many"}, r"dataset_config.*'str' and 'int'"),
        ({"seed": 3}, "seed and size"),
    ],
)
def test_a_config_that_the_library_refuses_is_an_error_that_says_why(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        question("chain_sum", dataset_config=config)


def test_a_size_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="size"):
        question(size=0)


def test_over_a_host_the_same_mistakes_are_errors_of_the_wire() -> None:
    with pytest.raises(ExecutionFailed, match="'max_terms'"):
        hosted("reasoning_gym", ("reset", {"dataset_config": {"max_trems": 3}}))
    with pytest.raises(InvalidAction, match="seed"):
        hosted("reasoning_gym", ("reset", {"seed": "seven"}))


def test_a_config_may_hold_tuples_as_lists() -> None:
    config = {"operators": ["+"], "min_terms": 4}
    asked = question("basic_arithmetic", seed=1, dataset_config=config)
    assert "+" in asked and not {*"*/"} & {*asked}


@pytest.mark.slow
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
