"""Check answers before they are passed to a scorer.

An answer comes from a model, or from any client of the server. Nine of the library's scorers pass
it to `eval`, directly or through sympy, and others repeat a move as often as it says. So an answer
must not contain code, and its numbers must be small. What these checks miss is stopped by
`limits.py`.
"""

from __future__ import annotations

import ast
import math
import re

LITERAL_DATASETS = frozenset(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"))
"""Data sets whose scorer evaluates the answer as a Python list."""
ARITHMETIC_DATASETS = frozenset(("countdown", "puzzle24"))
"""Data sets whose answer may have whole numbers and the four operations only."""
FORMULA_DATASETS = frozenset(
    (
        *ARITHMETIC_DATASETS,
        "intermediate_integration",
        "polynomial_multiplication",
        "simple_integration",
    )
)
"""Data sets whose scorer evaluates the answer as a formula, mostly with sympy."""
MOVE_DATASETS = frozenset(("rubiks_cube", "rush_hour"))
"""Data sets whose scorer repeats a move as often as the answer says."""
UNPARSABLE_FORMULA = ")"
"""Passed to the scorer instead of an invalid formula: no scorer can parse it."""

MAX_ANSWER_CHARS = 100_000
MAX_FORMULA_CHARS = 10_000
"""Characters."""
MAX_BITS = 10_000
"""Maximum size of a number in a formula: about three thousand digits."""
MAX_REPEATS = 10_000
"""Maximum number of repetitions of a move."""

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
_EXPONENTIAL_FUNCTIONS = frozenset(("cosh", "coth", "exp", "sinh"))
_MANTISSA = re.compile(r"[+-]?[\d_,.]+")
_LONG_EXPONENT = re.compile(r"[+-]?[\d_]{5,}")
_COUNT = re.compile(r"\d+")
_NOT_FINITE = re.compile(r"(?<![a-z])(nan|inf|infinity)[ij]?(?![a-z])", re.IGNORECASE)


class AnswerRefused(Exception):
    """An answer is not passed to the scorer; the message is for the model."""


def check_answer(answer: str, source: str, *, right: str | None = None) -> str:
    """Return what to pass to the scorer of the data set `source`, or raise `AnswerRefused`.

    `right` is the correct answer, if there is only one.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        raise AnswerRefused(
            f"it has {len(answer):,} characters, and {MAX_ANSWER_CHARS:,} are allowed"
        )
    if _is_huge_number(answer):
        raise AnswerRefused("it is a number with more digits than any answer has")
    if _NOT_FINITE.search(answer) and not _NOT_FINITE.search(str(right)):
        # A difference to NaN is never too large.
        raise AnswerRefused("it has a number that is not finite")
    if source in MOVE_DATASETS and any(int(n[:6]) > MAX_REPEATS for n in _COUNT.findall(answer)):
        raise AnswerRefused(f"it repeats a move more than {MAX_REPEATS:,} times")
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
    allowed, is_allowed = "a list", _is_list_node
    if source in ARITHMETIC_DATASETS:
        allowed, is_allowed = "whole numbers and + - * /", _is_arithmetic_node
    elif formula:
        allowed = "numbers, names, operators and elementary functions"
        is_allowed = _is_formula_node
    if not all(map(is_allowed, ast.walk(tree))):
        raise AnswerRefused(f"it is a program; only {allowed} can be evaluated")
    if formula:
        try:
            _answer_bits(tree.body)
        except RecursionError:
            raise AnswerRefused("it is nested too deeply") from None
    return answer


def _is_huge_number(answer: str) -> bool:
    """Whether it is a number such as 1e999999999, of which `Fraction` computes all digits."""
    mantissa, _, exponent = answer.strip().lower().rpartition("e")
    return bool(_LONG_EXPONENT.fullmatch(exponent) and _MANTISSA.fullmatch(mantissa))


def _is_list_node(node: ast.AST) -> bool:
    return isinstance(node, (*_SAFE_NODES, ast.Constant, ast.List, ast.Tuple))


def _is_arithmetic_node(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, _ARITHMETIC_NODES)


def _is_formula_node(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else None
        return name in _FUNCTIONS and not node.keywords
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    return isinstance(node, (*_SAFE_NODES, ast.BinOp))


def _answer_bits(node: ast.AST) -> float:
    """An upper bound of the bits of any intermediate result of an answer that is a formula.

    Names count as numbers of one digit, because a power of a sum may be expanded.
    """
    match node:
        case ast.Constant(value=int(value)):
            bits = float(value.bit_length())
        case ast.Constant(value=float(value)):
            bits = 64.0 if math.isinf(value) else abs(math.frexp(value)[1]) + 53.0
        case ast.UnaryOp(operand=operand):
            bits = _answer_bits(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base_bits, power = _answer_bits(left) + 1, max(1.0, _answer_magnitude(right))
            bits = base_bits * power + _answer_bits(right)
        case ast.BinOp(left=left, op=ast.LShift(), right=right):
            bits = _answer_bits(left) + _answer_magnitude(right)
        case ast.BinOp(left=left, right=right):
            bits = _answer_bits(left) + _answer_bits(right) + 1
        case ast.Call(func=ast.Name(id=name), args=arguments):
            bits = 64 + sum(_answer_bits(each) for each in arguments)
            if name in _EXPONENTIAL_FUNCTIONS and not any(map(_answer_has_name, arguments)):
                bits += 2 * sum(_answer_magnitude(each) for each in arguments)
        case _:
            bits = 4.0
    if bits > MAX_BITS:
        raise AnswerRefused(f"its numbers grow beyond {MAX_BITS:,} bits")
    return bits


def _answer_magnitude(node: ast.AST) -> float:
    """An upper bound of the absolute value of an answer in which every name is 1."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(abs(value)) if abs(value) <= MAX_BITS else math.inf
        case ast.Name():
            return 1.0
        case ast.UnaryOp(operand=operand):
            return _answer_magnitude(operand) + 1
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _answer_magnitude(left) + _answer_magnitude(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _answer_magnitude(left) * _answer_magnitude(right)
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=int(value))) if value:
            return _answer_magnitude(left)
        case ast.BinOp(left=ast.Name(), op=ast.Pow()):
            return 1.0
        case ast.Call() if _answer_has_name(node):
            return 1.0
        case _:
            return float(2.0 ** min(_answer_bits(node), 1000.0))


def _answer_has_name(node: ast.AST) -> bool:
    """Whether a part of an answer has a variable; names of functions do not count."""
    functions = {id(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
    return any(isinstance(e, ast.Name) and id(e) not in functions for e in ast.walk(node))
