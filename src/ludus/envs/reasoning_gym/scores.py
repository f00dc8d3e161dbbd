"""Fixes of the library: scores where a wrong answer got the top reward, and unusable questions.

Runs in a worker process.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import combinations, product
from operator import add, and_, mul, or_, sub, truediv
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reasoning_gym.factory import ProceduralDataset

    from ludus.data.tool_schema import JsonObject


Entry = Mapping[str, Any]
Score = Callable[["ProceduralDataset", str, Entry], float]
"""The method `score_answer` of a data set's class."""

_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.Div: truediv,
}


MAX_TERM = 1000
"""The largest term that `number_sequence` itself accepts in a finished sequence."""
_UNSAFE_PROGRAM = re.compile(
    r"\b(?:now|today|input|id|open|exit|Thread|Pool|Process|getcontext|setcontext|seterr)\("
    r"|\b(?:seed|Random|default_rng|RandomState)\(\)"
    r"|\b(?:time|os|signal|socket|subprocess|tempfile)\.\w"
    r"|\b(?:environ|scipy|secrets|urandom|uuid)\b"
)
"""Programs of `codeio`, which runs them, that reach out of the process, change its global state, or
return what the seed does not determine."""


class UnusableQuestion(Exception):
    """A question cannot be asked; another one is drawn instead."""


def patch_library() -> None:
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
    _keep_safe_programs(CodeIODataset)
    GameOfLifeDataset.score_answer = score_living_cells
    GameOfLifeHaltingDataset.score_answer = score_truth_value
    CountdownDataset.score_answer = Puzzle24Dataset.score_answer = score_arithmetic
    CoinFlipDataset.score_answer = score_probability
    PropositionalLogicDataset.score_answer = score_conclusion(
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


def _keep_safe_programs(codeio: Any) -> None:
    """Leave out unsafe programs, and keep those of each data set apart: the class holds them."""
    initialize, draw = codeio.__init__, codeio.__getitem__

    def initialize_safely(dataset: ProceduralDataset, config: Any) -> None:
        initialize(dataset, config)
        dataset.programs = [row for row in codeio._jsonl_data if is_safe_program(row)]

    def draw_own(dataset: ProceduralDataset, index: int) -> Any:
        codeio._jsonl_data = dataset.programs
        try:
            return draw(dataset, index)
        except TypeError as error:  # The program returned what JSON cannot represent.
            raise UnusableQuestion from error

    codeio.__init__, codeio.__getitem__ = initialize_safely, draw_own


def is_safe_program(row: Entry) -> bool:
    code = (row["code_sample"], row["input_generator"])
    return not any(map(_UNSAFE_PROGRAM.search, code))


def complete_entry(entry: JsonObject) -> None:
    """Change the record of a question so that its answer can be right, and depends on the seed."""
    metadata = entry["metadata"]
    source = metadata.get("source_dataset")
    if source == "time_intervals" and metadata["task_type"].startswith("time"):
        # A time of day is recorded with today's date, which the seed does not determine.
        for key in ("start_time", "end_time"):
            metadata[key] = metadata[key].split()[-1]
    if source == "propositional_logic":
        entry["question"] += RULES
        metadata["example_answer"] = find_conclusion(metadata["premises"], metadata["variables"])


def require_usable(entry: Entry, dataset: ProceduralDataset) -> None:
    """Raise `UnusableQuestion` if the answer to a question scores less than 1 or takes no effort.

    Some scorers reject an empty answer, which is sometimes the correct one. Most premises of
    `propositional_logic` have no conclusion that takes reasoning. `intermediate_integration` has
    integrals that it leaves unsolved. In nine of ten questions of `string_insertion` there is
    nothing to insert, and a copy of the question is right. Programs of `codeio` that fail return
    nothing.
    """
    answer, metadata = entry["answer"], entry["metadata"]
    source = metadata.get("source_dataset")
    if (
        (source == "string_insertion" and answer == metadata["string"])
        or (source == "intermediate_integration" and "Integral(" in answer)
        or (source == "codeio" and metadata["output_data"] == {})
    ):
        raise UnusableQuestion
    if answer is None:
        answer = metadata.get("example_answer")
    if answer is not None and dataset.score_answer(answer, entry) < 1.0:
        raise UnusableQuestion


def score_truth_value(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """Score `game_of_life_halting`, whose own scorer takes any text for true, even "False"."""
    return float(answer.strip().lower() == entry["answer"].lower())


def score_living_cells(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """Score `game_of_life` by the living cells: those of both boards, of those of either.

    The library counts all cells, and nearly all are dead: an empty board gets 0.96 on average.
    """
    given, right = json.loads(answer), json.loads(entry["answer"])
    if given == right:
        return 1.0
    if [len(row) for row in given] != [len(row) for row in right]:
        return 0.0
    here, there = (
        {(y, x) for y, row in enumerate(board) for x, cell in enumerate(row) if cell != 0}
        for board in (given, right)
    )
    return len(here & there) / len(here | there) if here != there else 0.0


def score_arithmetic(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """Score `countdown` and `puzzle24`: each given number once, and the exact result.

    The library counts digits, which names (`pi`) and notations (`4e2`, `0x1c8`) evade, or does not
    compare the numbers at all.
    """
    metadata = entry["metadata"]
    formula = ast.parse(answer.strip(), mode="eval").body
    used = Counter(node.value for node in ast.walk(formula) if isinstance(node, ast.Constant))
    given = Counter(metadata["numbers"])
    return float(used == given and _evaluate(formula) == metadata.get("target", 24))


def score_probability(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """Score `coin_flip` within 1e-4 and one percent.

    The library's absolute tolerance takes 0 for right where the probability is small, and so does
    its credit for a common prefix, which is relative to the shorter number.
    """
    given, right = float(Fraction(answer.replace(",", ""))), float(entry["answer"])
    return float(abs(given - right) <= min(1e-4, 0.01 * right))


def score_conclusion(score: Score) -> Score:
    """Score `propositional_logic`: like a tautology what follows without any reasoning."""

    def scored(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
        value, metadata = score(dataset, answer, entry), entry["metadata"]
        if value < 0.25:
            return value
        return 1.0 if is_conclusion(answer, metadata["premises"], metadata["variables"]) else 0.25

    return scored


def _evaluate(formula: ast.expr) -> Fraction:
    match formula:
        case ast.Constant(value=int(value)):
            return Fraction(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return _OPERATIONS[type(operator)](_evaluate(left), _evaluate(right))
    raise ValueError(f"{ast.unparse(formula)} is no arithmetic")


RULES = (
    "\nThe conclusion must take more than one premise: it follows from none of them alone. Give a "
    "variable, a negated variable, or a disjunction or implication of these, with each variable at "
    "most once."
)
"""Added to the question."""
MAX_LITERALS = 3
"""Longer conclusions are accepted, but not searched for."""


def find_conclusion(premises: Sequence[str], variables: Sequence[str]) -> str:
    """One of the shortest conclusions; "" if there is none or the premises are contradictory."""
    tables = [_truth_table(premise, variables) for premise in premises]
    literals = [(f"{sign}{name}", name) for name in variables for sign in ("", "¬")]
    values = {literal: _truth_table(literal, variables) for literal, _ in literals}
    for size in range(1, MAX_LITERALS + 1):
        for chosen in combinations(literals, size):
            if len({name for _, name in chosen}) == size:
                clause = [literal for literal, _ in chosen]
                table = reduce(or_, map(values.__getitem__, clause))
                if _takes_reasoning(table, tables, len(variables)):
                    return " \N{LOGICAL OR} ".join(clause)
    return ""


def is_conclusion(answer: str, premises: Sequence[str], variables: Sequence[str]) -> bool:
    """Whether an answer is a clause that follows from the premises, and from none alone."""
    names = re.findall(r"[A-Z]", answer)
    table = _truth_table(answer, variables)
    # A clause over k variables is false for one in 2**k assignments.
    is_clause = table.bit_count() == 2 ** len(variables) - 2 ** (len(variables) - len(names))
    tables = [_truth_table(premise, variables) for premise in premises]
    unique = bool(names) and len(set(names)) == len(names)
    return unique and is_clause and _takes_reasoning(table, tables, len(variables))


def _takes_reasoning(conclusion: int, premises: Sequence[int], variables: int) -> bool:
    everywhere = (1 << 2**variables) - 1
    joint = reduce(and_, premises, everywhere)
    follows_from_one = any(not premise & ~conclusion for premise in premises)
    return joint != 0 and not joint & ~conclusion and not follows_from_one


def _truth_table(formula: str, variables: Sequence[str]) -> int:
    from reasoning_gym.logic.propositional_logic import Expression

    expression = Expression.from_string(formula)
    assignments = enumerate(product((False, True), repeat=len(variables)))
    bits = (
        int(expression.evaluate(dict(zip(variables, values, strict=True)))) << position
        for position, values in assignments
    )
    return reduce(or_, bits, 0)
