"""Fixes of bugs in the library that make some of its questions unusable, or reward wrong answers.

Runs in a worker process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ludus.envs.reasoning_gym import propositional, scores
from ludus.envs.reasoning_gym.programs import select_deterministic

MAX_TERM = 1000
"""The largest term that `number_sequence` itself accepts in a finished sequence."""


def apply_patches() -> None:
    """Import the library and patch its classes."""
    from reasoning_gym.algorithmic.game_of_life import GameOfLifeDataset
    from reasoning_gym.algorithmic.game_of_life_halting import GameOfLifeHaltingDataset
    from reasoning_gym.code.codeio import CodeIODataset
    from reasoning_gym.cognition.number_sequences import PatternRule
    from reasoning_gym.games.countdown import CountdownDataset
    from reasoning_gym.games.puzzle24 import Puzzle24Dataset
    from reasoning_gym.logic.propositional_logic import PropositionalLogicDataset
    from reasoning_gym.probability.coin_flip import CoinFlipDataset

    PatternRule.apply = _bound_terms(PatternRule.apply)
    CodeIODataset.__init__ = _select_programs(CodeIODataset.__init__)
    CodeIODataset.__getitem__ = _with_own_rows(CodeIODataset.__getitem__)
    GameOfLifeDataset.score_answer = scores.score_living_cells
    GameOfLifeHaltingDataset.score_answer = scores.score_truth_value
    CountdownDataset.score_answer = Puzzle24Dataset.score_answer = scores.score_arithmetic
    CoinFlipDataset.score_answer = scores.score_probability
    PropositionalLogicDataset.score_answer = scores.score_conclusion(
        PropositionalLogicDataset.score_answer
    )


def _bound_terms(apply: Callable[..., int]) -> Callable[..., int]:
    """Keep `number_sequence` from computing numbers with billions of digits.

    It checks the size of the terms only after it has computed all of them. On an OverflowError it
    draws another rule, as it does for terms that are too large.
    """

    def bounded(rule: Any, sequence: list[int], position: int) -> int:
        term = apply(rule, sequence, position)
        if abs(term) > MAX_TERM:
            raise OverflowError
        return term

    return bounded


def _select_programs(init: Callable[..., None]) -> Callable[..., None]:
    """Restrict `codeio` to programs with a deterministic answer."""

    def selecting(dataset: Any, config: Any) -> None:
        init(dataset, config)
        dataset.rows = select_deterministic(type(dataset)._jsonl_data)

    return selecting


def _with_own_rows(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Give each `codeio` data set its own rows: the class attribute is shared by all configs."""

    def drawing(dataset: Any, index: int) -> Any:
        type(dataset)._jsonl_data = dataset.rows
        return draw(dataset, index)

    return drawing


def fix_entry(entry: dict[str, Any]) -> None:
    """Fix the record of a question, in place."""
    metadata = entry["metadata"]
    source = metadata.get("source_dataset")
    if source == "time_intervals" and metadata["task_type"].startswith("time"):
        # A time of day is recorded with today's date, which the seed does not determine.
        for key in ("start_time", "end_time"):
            metadata[key] = metadata[key].split()[-1]
    if source == "intermediate_integration" and "Integral(" in entry["answer"]:
        entry["answer"] = f"{_patched_integral(metadata['integrand'], metadata['variable'])} + C"
    if source == "propositional_logic":
        entry["question"] += propositional.RULES
        metadata["example_answer"] = propositional.find_conclusion(
            metadata["premises"], metadata["variables"]
        )


def is_unfixable(entry: dict[str, Any], dataset: Any) -> bool:
    """Whether a question is unusable even with the patches: its correct answer scores less than 1.

    Some scorers reject an empty answer, which is sometimes the correct one. Most premises of
    `propositional_logic` have no conclusion that takes reasoning. In nine of ten questions of
    `string_insertion` there is nothing to insert, and a copy of the question is right.
    """
    answer, metadata = entry["answer"], entry["metadata"]
    if metadata.get("source_dataset") == "string_insertion" and answer == metadata["string"]:
        return True
    if answer is None:
        answer = metadata.get("example_answer")
    return answer is not None and bool(dataset.score_answer(answer, entry) < 1.0)


def _patched_integral(integrand: str, variable: str) -> Any:
    """The integral of the text of the integrand, to patch an answer without one.

    The data set integrates an undefined function named `cos`; parsed from text it is the cosine.
    """
    import sympy  # type: ignore[import-untyped]  # It has no type hints.

    x = sympy.Symbol(variable)
    return sympy.integrate(sympy.parse_expr(integrand, local_dict={variable: x}), x)
