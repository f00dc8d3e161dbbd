"""Sudoku puzzles with one solution, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from ludus.envs.sudoku.solver import (
    Geometry,
    candidates_from_clues,
    cells_of,
    find_solution,
    geometry,
    propagate,
)

Size = Literal[4, 9]
Difficulty = Literal["easy", "medium", "hard"]

CLUES: dict[tuple[Size, Difficulty], int] = {
    (4, "easy"): 10,
    (4, "medium"): 8,
    (4, "hard"): 5,
    (9, "easy"): 45,
    (9, "medium"): 36,
    (9, "hard"): 26,
}
"""How many digits are given. A hard puzzle has a few more where its solution needs them."""


class Puzzle(NamedTuple):
    """The digits of the cells, row by row; 0 for an empty cell."""

    givens: tuple[int, ...]
    solution: tuple[int, ...]


@lru_cache(maxsize=4096)
def make_puzzle(size: Size, difficulty: Difficulty, seed: int) -> Puzzle:
    """A puzzle with exactly one solution.

    Puzzles that are not hard can be solved without guessing: at every point some cell has one
    possible digit, or some digit has one possible cell in a row, a column or a box.
    """
    rng = random.Random(seed)
    grid = geometry(size)
    clues = find_solution([grid.all_cells] * size, 0, grid, rng)
    assert clues is not None
    solution = _digits_of_cells(clues, grid)
    clues_to_remove = size * size - CLUES[size, difficulty]
    cells = list(range(size * size))
    rng.shuffle(cells)
    for cell in cells:
        digit = solution[cell] - 1
        clues[digit] ^= 1 << cell
        if not _is_determined(clues, cell, digit, grid, by_search=difficulty == "hard"):
            clues[digit] ^= 1 << cell
            continue
        clues_to_remove -= 1
        if clues_to_remove == 0:
            break
    return Puzzle(_digits_of_cells(clues, grid), solution)


def _is_determined(
    clues: Sequence[int], cell: int, digit: int, grid: Geometry, *, by_search: bool
) -> bool:
    """Whether a puzzle still has one solution without the clue that was removed from a cell."""
    candidates, given = candidates_from_clues(clues, grid)
    if not by_search:
        return propagate(candidates, given, grid) == grid.all_cells
    # There was one solution with the clue, so that another one has another digit there.
    candidates[digit] &= ~(1 << cell)
    return find_solution(candidates, given, grid) is None


def _digits_of_cells(boards: Sequence[int], grid: Geometry) -> tuple[int, ...]:
    digits = [0] * (grid.size * grid.size)
    for digit, board in enumerate(boards, start=1):
        for cell in cells_of(board):
            digits[cell] = digit
    return tuple(digits)
