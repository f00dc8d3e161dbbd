"""Why a digit belongs into a cell, in a sentence or two that a small language model can follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache


def explain_digit(digits: Sequence[int], size: int, cell: int, digit: int) -> str:
    """The digits around a cell, and which ones they leave; if several, why this one.

    `digits` are those of all cells, row by row, 0 where a cell is empty.
    """
    row, column = divmod(cell, size)
    units = _units_of(size, cell)
    around = [f"{name} {_join_digits(digits[at] for at in unit)}" for name, unit in units.items()]
    left = _join_digits(_legal_digits(digits, size, cell))
    text = f"Row {row + 1}, column {column + 1}: {', '.join(around)}. Left: {left}."
    unit = forcing_unit(digits, size, cell, digit)
    if left == str(digit) or unit is None:
        return text
    return f"{text} No other cell of the {unit} can be {digit}."


def forcing_unit(digits: Sequence[int], size: int, cell: int, digit: int) -> str | None:
    """The unit, a row, column or box, in which no other empty cell can have the digit, if any."""
    for name, unit in _units_of(size, cell).items():
        others = (at for at in unit if at != cell and digits[at] == 0)
        if not any(digit in _legal_digits(digits, size, at) for at in others):
            return name
    return None


def _legal_digits(digits: Sequence[int], size: int, cell: int) -> list[int]:
    taken = {digits[at] for unit in _units_of(size, cell).values() for at in unit}
    return [digit for digit in range(1, size + 1) if digit not in taken]


def _join_digits(digits: Iterable[int]) -> str:
    return " ".join(str(digit) for digit in digits if digit) or "-"


@cache
def _units_of(size: int, cell: int) -> dict[str, tuple[int, ...]]:
    """The cells of the row, the column and the box of a cell, in reading order."""
    box = round(size**0.5)
    row, column = divmod(cell, size)
    top, left = row // box * box, column // box * box
    return {
        "row": tuple(row * size + at for at in range(size)),
        "column": tuple(at * size + column for at in range(size)),
        "box": tuple((top + r) * size + left + c for r in range(box) for c in range(box)),
    }
