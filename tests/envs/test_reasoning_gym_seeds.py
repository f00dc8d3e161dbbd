"""The same seed asks the same question, and each has an answer that earns the top reward."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from envs.questions import oracle_score, question
from ludus.envs.reasoning_gym import ReasoningGym
from ludus.envs.reasoning_gym.environment import MAX_WORKERS

SENSITIVE = (
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


@pytest.mark.slow
def test_the_same_seed_asks_the_same_question_whatever_was_asked_before() -> None:
    seeds = range(4)
    forwards = {name: [question(name, seed=seed) for seed in seeds] for name in SENSITIVE}
    backwards = {
        name: [question(name, seed=seed) for seed in reversed(seeds)][::-1]
        for name in reversed(SENSITIVE)
    }
    assert forwards == backwards


@pytest.mark.slow
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

    with ThreadPoolExecutor(MAX_WORKERS) as pool:
        variants = ReasoningGym.oracle_variants()
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
        ("string_manipulation", 1168),
    ],
)
def test_a_question_whose_right_answer_the_library_would_refuse_is_not_asked(
    variant: str, seed: int
) -> None:
    assert oracle_score(variant, seed=seed) == 1.0


def test_a_sequence_that_would_grow_without_bound_is_not_computed() -> None:
    assert oracle_score("number_sequence", seed=163) == 1.0


@pytest.mark.parametrize("name", ["boxnet", "rush_hour"])
def test_a_data_set_without_answers_has_no_oracle(name: str) -> None:
    environment = ReasoningGym(name)
    environment.reset(seed=1)
    with pytest.raises(NotImplementedError, match=name):
        environment.oracle()
    assert name not in ReasoningGym.oracle_variants()
