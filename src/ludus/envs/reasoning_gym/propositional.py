"""Conclusions of `propositional_logic` that take reasoning.

The library accepts whatever follows from the premises: all of them joined, a single one, and
anything where they contradict each other. Here a conclusion is a clause (a variable, a negated one,
or a disjunction of these, also written as an implication) that follows from no premise alone. Each
variable may be written once, so that premises which amount to a clause cannot just be joined.

Formulas are compared by their truth tables: integers with one bit per assignment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from itertools import combinations, product
from operator import and_, or_

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
