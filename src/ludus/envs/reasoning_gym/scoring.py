"""Honest and safe scores: checks of answers, and fixes of the library. Runs in a worker process.

An answer comes from a model, or from any client of the server. Some of the library's scorers pass
it to `eval`, directly or through sympy, so an answer to these must not contain code. Answers that
are too large to evaluate are stopped by the limits of the worker.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import add, mul, sub, truediv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reasoning_gym.factory import ProceduralDataset

    from ludus.data.tool_schema import JsonObject

EXCLUDED = frozenset(("codeio", "composite", "propositional_logic"))
"""Data sets that are not offered: `codeio` runs programs that a model wrote, the scorer of
`propositional_logic` gives the top reward to a repeated premise, and what `composite` mixes a
mixture of environments does too."""
LITERAL_DATASETS = frozenset(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"))
"""Data sets whose scorer evaluates the answer as a Python list."""
ARITHMETIC_DATASETS = frozenset(("countdown", "puzzle24"))
"""Data sets whose answer may have whole numbers and the four operations only."""
FORMULA_DATASETS = ARITHMETIC_DATASETS | {
    "intermediate_integration",
    "polynomial_multiplication",
    "simple_integration",
}
"""Data sets whose scorer evaluates the answer as a formula, mostly with sympy."""
UNPARSABLE_FORMULA = ")"
"""Passed to the scorer instead of an invalid formula: no scorer can parse it."""

MAX_ANSWER_CHARS = 100_000
MAX_FORMULA_CHARS = 10_000
MAX_TERM = 1000
"""The largest term that `number_sequence` itself accepts in a finished sequence."""

_SAFE_NODES = (ast.Expression, ast.Name, ast.UnaryOp, ast.expr_context, ast.operator, ast.unaryop)
_ARITHMETIC_NODES = (
    *(ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div),
    *(ast.UnaryOp, ast.USub),
)
_ELEMENTARY = (
    "Abs abs acos acosh acot asin asinh atan atanh cos cosh cot coth csc erf exp ln log sec sin "
    "sinh sqrt tan tanh"
)
_FUNCTIONS = frozenset(_ELEMENTARY.split())
_NOT_FINITE = re.compile(r"(?<![a-z])(nan|inf|infinity)[ij]?(?![a-z])", re.IGNORECASE)
_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.Div: truediv,
}


class AnswerRefused(Exception):
    """An answer is not passed to the scorer; the message is for the model."""


class UnusableQuestion(Exception):
    """A question cannot be asked; another one is drawn instead."""


def check_answer(answer: str, source: str, *, right: str | None = None) -> str:
    """Return the answer to pass to the scorer of data set `source`; raises `AnswerRefused`.

    `right` is the correct answer, if there is only one.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        raise AnswerRefused(
            f"it has {len(answer):,} characters, and {MAX_ANSWER_CHARS:,} are allowed"
        )
    if _NOT_FINITE.search(answer) and not _NOT_FINITE.search(str(right)):
        # A difference to NaN is never too large.
        raise AnswerRefused("it has a number that is not finite")
    if source not in LITERAL_DATASETS | FORMULA_DATASETS:
        return answer
    formula = source in FORMULA_DATASETS
    if formula and len(answer) > MAX_FORMULA_CHARS:
        raise AnswerRefused(f"a formula may have {MAX_FORMULA_CHARS:,} characters")
    try:
        # Like `eval`, which strips leading blanks too.
        tree = ast.parse(answer.lstrip(" \t"), mode="eval")
    except SyntaxError:
        # `eval` rejects it as well, but sympy accepts more than Python's syntax.
        return UNPARSABLE_FORMULA if formula else answer
    except (MemoryError, RecursionError, ValueError):
        raise AnswerRefused("it is nested too deeply") from None
    if not all(_is_allowed(node, source) for node in ast.walk(tree)):
        allowed = "numbers, names, operators and elementary functions" if formula else "a list"
        if source in ARITHMETIC_DATASETS:
            allowed = "whole numbers and + - * /"
        raise AnswerRefused(f"it is a program; only {allowed} can be evaluated")
    return answer


def _is_allowed(node: ast.AST, source: str) -> bool:
    """Whether an answer to the data set `source` may contain this node."""
    if source in LITERAL_DATASETS:
        return isinstance(node, (*_SAFE_NODES, ast.Constant, ast.List, ast.Tuple))
    if isinstance(node, ast.Constant):
        number = int if source in ARITHMETIC_DATASETS else (int, float)
        return isinstance(node.value, number) and not isinstance(node.value, bool)
    if source in ARITHMETIC_DATASETS:
        return isinstance(node, _ARITHMETIC_NODES)
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else None
        return name in _FUNCTIONS and not node.keywords
    return isinstance(node, (*_SAFE_NODES, ast.BinOp))


def patch_library() -> None:
    """Import the library and replace scorers that give wrong answers the top reward."""
    from reasoning_gym.algorithmic.game_of_life import GameOfLifeDataset
    from reasoning_gym.algorithmic.game_of_life_halting import GameOfLifeHaltingDataset
    from reasoning_gym.cognition.number_sequences import PatternRule
    from reasoning_gym.games.countdown import CountdownDataset
    from reasoning_gym.games.puzzle24 import Puzzle24Dataset
    from reasoning_gym.probability.coin_flip import CoinFlipDataset

    apply = PatternRule.apply

    def apply_bounded(rule: PatternRule, sequence: list[int], position: int) -> int:
        """Keep `number_sequence` from computing numbers with billions of digits.

        It checks the size of the terms only after it has computed all of them. On an OverflowError
        it draws another rule, as it does for terms that are too large.
        """
        term: int = apply(rule, sequence, position)
        if abs(term) > MAX_TERM:
            raise OverflowError
        return term

    PatternRule.apply = apply_bounded
    GameOfLifeDataset.score_answer = score_living_cells
    GameOfLifeHaltingDataset.score_answer = score_truth_value
    CountdownDataset.score_answer = Puzzle24Dataset.score_answer = score_arithmetic
    CoinFlipDataset.score_answer = score_probability


def require_usable(entry: JsonObject, dataset: ProceduralDataset) -> None:
    """Raise `UnusableQuestion` if the answer to a question scores less than 1 or takes no effort.

    Some scorers reject an empty answer, which is sometimes the correct one.
    `intermediate_integration` has integrals that it leaves unsolved. In nine of ten questions of
    `string_insertion` there is nothing to insert, and a copy of the question is right.
    """
    answer, metadata = entry["answer"], entry["metadata"]
    source = metadata.get("source_dataset")
    if (
        (source == "string_insertion" and answer == metadata["string"])
        or (source == "intermediate_integration" and "Integral(" in answer)
        or (answer is not None and dataset.score_answer(answer, entry) < 1.0)
    ):
        raise UnusableQuestion


def score_truth_value(dataset: ProceduralDataset, answer: str, entry: JsonObject) -> float:
    """Score `game_of_life_halting`, whose own scorer takes any text for true, even "False"."""
    return float(answer.strip().lower() == entry["answer"].lower())


def score_living_cells(dataset: ProceduralDataset, answer: str, entry: JsonObject) -> float:
    """Score `game_of_life` by the cells that live in both boards, as a fraction of all that live.

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


def score_arithmetic(dataset: ProceduralDataset, answer: str, entry: JsonObject) -> float:
    """Score `countdown` and `puzzle24`: each given number once, and the exact result.

    The library counts digits, which names (`pi`) and notations (`4e2`, `0x1c8`) evade, or does not
    compare the numbers at all.
    """
    metadata = entry["metadata"]
    formula = ast.parse(answer.strip(), mode="eval").body
    used = Counter(node.value for node in ast.walk(formula) if isinstance(node, ast.Constant))
    given = Counter(metadata["numbers"])
    return float(used == given and _evaluate(formula) == metadata.get("target", 24))


def _evaluate(formula: ast.expr) -> Fraction:
    match formula:
        case ast.Constant(value=int(value)):
            return Fraction(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return _OPERATIONS[type(operator)](_evaluate(left), _evaluate(right))
    raise ValueError(f"{ast.unparse(formula)} is no arithmetic")


def score_probability(dataset: ProceduralDataset, answer: str, entry: JsonObject) -> float:
    """Score `coin_flip` within 1e-4 and one percent.

    The library's absolute tolerance takes 0 for right if the probability is small, and so does
    its credit for a common prefix, which is relative to the shorter number.
    """
    given, right = float(Fraction(answer.replace(",", ""))), float(entry["answer"])
    return float(abs(given - right) <= min(1e-4, 0.01 * right))
