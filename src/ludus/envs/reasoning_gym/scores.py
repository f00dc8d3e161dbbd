"""Scores that replace those of the library where a wrong answer got the top reward."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import add, mul, sub, truediv
from typing import Any

from ludus.envs.reasoning_gym.propositional import is_conclusion

Entry = Mapping[str, Any]
Score = Callable[[Any, str, Entry], float]
"""The method `score_answer` of a data set's class."""

_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.Div: truediv,
}


def score_truth_value(dataset: Any, answer: str, entry: Entry) -> float:
    """Score `game_of_life_halting`, whose own scorer takes any text for true, even "False"."""
    return float(answer.strip().lower() == entry["answer"].lower())


def score_living_cells(dataset: Any, answer: str, entry: Entry) -> float:
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


def score_arithmetic(dataset: Any, answer: str, entry: Entry) -> float:
    """Score `countdown` and `puzzle24`: each given number once, and the exact result.

    The library counts digits, which names (`pi`) and notations (`4e2`, `0x1c8`) evade, or does not
    compare the numbers at all.
    """
    metadata = entry["metadata"]
    formula = ast.parse(answer.strip(), mode="eval").body
    used = Counter(node.value for node in ast.walk(formula) if isinstance(node, ast.Constant))
    given = Counter(metadata["numbers"])
    return float(used == given and _evaluate(formula) == metadata.get("target", 24))


def score_probability(dataset: Any, answer: str, entry: Entry) -> float:
    """Score `coin_flip` within 1e-4 and one percent.

    The library's absolute tolerance takes 0 for right where the probability is small, and so does
    its credit for a common prefix, which is relative to the shorter number.
    """
    given, right = float(Fraction(answer.replace(",", ""))), float(entry["answer"])
    return float(abs(given - right) <= min(1e-4, 0.01 * right))


def score_conclusion(score: Score) -> Score:
    """Score `propositional_logic`: like a tautology what follows without any reasoning."""

    def scored(dataset: Any, answer: str, entry: Entry) -> float:
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
