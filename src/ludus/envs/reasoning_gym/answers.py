"""Which answers a scorer may be given: nine of the library's scorers hand them to `eval`.

An answer comes from a model, or from anybody who can reach the server. Nothing in it may run.
"""

from __future__ import annotations

import ast

LITERALS = frozenset(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"))
"""Data sets whose scorer evaluates the answer as a Python list."""
FORMULAS = frozenset(
    (
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    )
)
"""Data sets whose scorer evaluates it through sympy."""
UNREADABLE = ")"
"""What is scored in place of an answer that must not be evaluated: no scorer can read it."""

_ANYWHERE = (ast.Expression, ast.Name, ast.UnaryOp, ast.expr_context, ast.operator, ast.unaryop)
_ELEMENTARY = (
    "Abs abs acos acosh acot asin asinh atan atanh cos cosh cot coth csc erf exp ln log sec sin "
    "sinh sqrt tan tanh"
)
_FUNCTIONS = frozenset(_ELEMENTARY.split())


def scorable(answer: str, source: str) -> str:
    """The answer, if the scorer of data set `source` may have it."""
    if source in LITERALS | FORMULAS and not _harmless(answer, formula=source in FORMULAS):
        return UNREADABLE
    return answer


def _harmless(answer: str, *, formula: bool) -> bool:
    try:
        # What `eval` itself would see, down to the blanks that it strips.
        tree = ast.parse(answer.lstrip(" \t"), mode="eval")
    except SyntaxError:
        # `eval` will refuse it as well; sympy, however, reads more than Python does.
        return not formula
    except (MemoryError, RecursionError, ValueError):
        return False
    return all(_passive(node, formula=formula) for node in ast.walk(tree))


def _passive(node: ast.AST, *, formula: bool) -> bool:
    if isinstance(node, _ANYWHERE):
        return True
    if not formula:
        return isinstance(node, ast.Constant | ast.List | ast.Tuple)
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else None
        return name in _FUNCTIONS and not node.keywords
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    return isinstance(node, ast.BinOp)
