"""Fixes of bugs in the library that make some of its questions unusable.

Runs in a worker process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ludus.envs.reasoning_gym.programs import select_deterministic

MAX_TERM = 1000
"""The largest term that `number_sequence` itself accepts in a finished sequence."""


def apply_patches() -> None:
    """Import the library and patch its classes."""
    from reasoning_gym.algorithmic.game_of_life_halting import GameOfLifeHaltingDataset
    from reasoning_gym.code.codeio import CodeIODataset
    from reasoning_gym.cognition.number_sequences import PatternRule

    PatternRule.apply = _bound_terms(PatternRule.apply)
    CodeIODataset.__init__ = _select_programs(CodeIODataset.__init__)
    CodeIODataset.__getitem__ = _with_own_rows(CodeIODataset.__getitem__)
    GameOfLifeHaltingDataset.score_answer = _score_true_or_false


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


def _score_true_or_false(dataset: Any, answer: str | None, entry: dict[str, Any]) -> float:
    """Score `game_of_life_halting`, whose own scorer takes any text for true, even "False"."""
    return float((answer or "").strip().lower() == entry["answer"].lower())


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
    if source == "propositional_logic" and len(metadata["example_answer"]) == 1:
        # It found no conclusion and answers with a variable, which never scores 1.0.
        conjunction, *others = metadata["premises"]
        for premise in others or [conjunction]:
            conjunction = f"({conjunction} ∧ {premise})"
        metadata["example_answer"] = conjunction


def is_unfixable(entry: dict[str, Any], dataset: Any) -> bool:
    """Whether a question is unusable even with the patches: its correct answer scores less than 1.

    Some scorers reject an empty answer, which is sometimes the correct one. Where all premises are
    tautologies, `propositional_logic` has no conclusion that is not trivial.
    """
    answer = entry["answer"]
    if answer is None:
        answer = entry["metadata"].get("example_answer")
    return answer is not None and bool(dataset.score_answer(answer, entry) < 1.0)


def _patched_integral(integrand: str, variable: str) -> Any:
    """The integral of the text of the integrand, to patch an answer without one.

    The data set integrates an undefined function named `cos`; parsed from text it is the cosine.
    """
    import sympy  # type: ignore[import-untyped]  # It has no type hints.

    x = sympy.Symbol(variable)
    return sympy.integrate(sympy.parse_expr(integrand, local_dict={variable: x}), x)
