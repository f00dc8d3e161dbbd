"""What has to be put right in the library before its questions can be used.

Runs in the child process. Each repair says what it is for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ludus.envs.reasoning_gym.programs import select_deterministic

MAX_TERM = 1000
"""What `number_sequence` itself takes for the largest term of an interesting sequence."""


def apply_patches() -> None:
    """Import the library and change what is wrong in its classes."""
    from reasoning_gym.code.codeio import CodeIODataset
    from reasoning_gym.cognition.number_sequences import PatternRule

    PatternRule.apply = _bound_terms(PatternRule.apply)
    CodeIODataset.__init__ = _select_programs(CodeIODataset.__init__)
    CodeIODataset.__getitem__ = _with_own_rows(CodeIODataset.__getitem__)


def _bound_terms(apply: Callable[..., int]) -> Callable[..., int]:
    """Stop `number_sequence` from squaring its way to numbers of a billion digits.

    It looks at the size of the terms only when it has all of them, which may take for ever. Told
    of an overflow it draws another rule, as it does with terms that turn out too large.
    """

    def bounded(rule: Any, sequence: list[int], position: int) -> int:
        term = apply(rule, sequence, position)
        if abs(term) > MAX_TERM:
            raise OverflowError
        return term

    return bounded


def _select_programs(init: Callable[..., None]) -> Callable[..., None]:
    """Let `codeio` ask only about programs whose answer can be known."""

    def selecting(dataset: Any, config: Any) -> None:
        init(dataset, config)
        dataset.rows = select_deterministic(type(dataset)._jsonl_data)

    return selecting


def _with_own_rows(draw: Callable[..., Any]) -> Callable[..., Any]:
    """`codeio` keeps its rows in the class, where those of another config replace them."""

    def drawing(dataset: Any, index: int) -> Any:
        type(dataset)._jsonl_data = dataset.rows
        return draw(dataset, index)

    return drawing


def fix_entry(entry: dict[str, Any]) -> None:
    """Put right one record of a question, in place."""
    metadata = entry["metadata"]
    source = metadata.get("source_dataset")
    if source == "time_intervals" and metadata["task_type"].startswith("time"):
        # A time of day is recorded under the date of today, which no seed determines.
        for key in ("start_time", "end_time"):
            metadata[key] = metadata[key].split()[-1]
    if source == "intermediate_integration" and "Integral(" in entry["answer"]:
        entry["answer"] = f"{_integrate(metadata['integrand'], metadata['variable'])} + C"
    if source == "propositional_logic" and len(metadata["example_answer"]) == 1:
        # It found no conclusion, and names a variable, which is never worth 1.0.
        metadata["example_answer"] = _join_premises(metadata["premises"])


def is_unscorable(entry: dict[str, Any], dataset: Any) -> bool:
    """Whether the scorer does not even give the right answer 1.0.

    Some scorers refuse an empty answer, which now and then is the right one; and where all
    premises are tautologies, `propositional_logic` knows no conclusion that is not trivial.
    """
    right = entry["answer"]
    if right is None:
        right = entry["metadata"].get("example_answer")
    return right is not None and bool(dataset.score_answer(right, entry) < 1.0)


def _integrate(integrand: str, variable: str) -> Any:
    """The data set integrates a function that is only named `cos`, about which sympy knows nothing.

    Read back from its text it is the cosine.
    """
    import sympy  # type: ignore[import-untyped]

    x = sympy.Symbol(variable)
    return sympy.integrate(sympy.parse_expr(integrand, local_dict={variable: x}), x)


def _join_premises(premises: list[str]) -> str:
    together = premises[0]
    for premise in premises[1:] or premises:
        together = f"({together} ∧ {premise})"
    return together
