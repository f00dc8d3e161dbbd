"""Sudoku puzzles with one solution, made from a seed, and the solver that proves it.

The solver works on bitboards: integers whose bit `cell` stands for the cell `cell // size, cell %
size`. There is one bitboard per digit, of the cells where the digit may still stand, so that one
operation on an integer treats all cells of the grid at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal, NamedTuple

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
"""How many digits are given. A hard puzzle has a few more if its solution needs them."""


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
        candidates, given = candidates_from_clues(clues, grid)
        if difficulty == "hard":
            # There was one solution with the clue, so any other has another digit there.
            candidates[digit] &= ~(1 << cell)
            is_unique = find_solution(candidates, given, grid) is None
        else:
            is_unique = propagate(candidates, given, grid) == grid.all_cells
        if not is_unique:
            clues[digit] ^= 1 << cell
            continue
        clues_to_remove -= 1
        if clues_to_remove == 0:
            break
    return Puzzle(_digits_of_cells(clues, grid), solution)


def _digits_of_cells(boards: Sequence[int], grid: Geometry) -> tuple[int, ...]:
    digits = [0] * (grid.size * grid.size)
    for digit, board in enumerate(boards, start=1):
        for cell in cells_of(board):
            digits[cell] = digit
    return tuple(digits)


Candidates = list[int]
"""For each digit, from 1, the cells where it may stand."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The cells of a grid that belong together, as bitboards."""

    size: int
    all_cells: int
    units: tuple[int, ...]
    """Rows, columns and boxes."""
    peers: tuple[int, ...]
    """For each cell the others in its row, its column and its box."""


@cache
def geometry(size: int) -> Geometry:
    box = round(size**0.5)
    units = [0] * (3 * size)
    for cell in range(size * size):
        row, column = divmod(cell, size)
        in_box = row // box * box + column // box
        for unit in (row, size + column, 2 * size + in_box):
            units[unit] |= 1 << cell
    peers = []
    for cell in range(size * size):
        unit_cells = 0
        for unit in units:
            if unit >> cell & 1:
                unit_cells |= unit
        peers.append(unit_cells & ~(1 << cell))
    return Geometry(size, (1 << size * size) - 1, tuple(units), tuple(peers))


def cells_of(bitboard: int) -> Iterator[int]:
    """The cells of a bitboard, in ascending order."""
    while bitboard:
        lowest = bitboard & -bitboard
        yield lowest.bit_length() - 1
        bitboard ^= lowest


def candidates_from_clues(clues: Sequence[int], grid: Geometry) -> tuple[Candidates, int]:
    """The candidates that the clues leave, and the cells that have clues.

    `clues` are the bitboards of the given cells, one per digit.
    """
    given = 0
    for board in clues:
        given |= board
    candidates = []
    for board in clues:
        excluded = given
        for cell in cells_of(board):
            excluded |= grid.peers[cell]
        candidates.append(grid.all_cells & ~excluded | board)
    return candidates, given


def propagate(candidates: Candidates, solved_cells: int, grid: Geometry) -> int | None:
    """Fill in cells with one candidate, and digits with one place in a unit, until none is left.

    Changes the candidates. `solved_cells` are those whose digits are already excluded from their
    peers. Returns the solved cells; None if a cell or a digit has no place left.
    """
    while True:
        once = twice = 0
        for board in candidates:
            twice |= once & board
            once |= board
        if once != grid.all_cells:
            return None
        singles = once & ~twice & ~solved_cells
        if singles:
            solved_cells |= singles
            for digit, board in enumerate(candidates):
                for cell in cells_of(board & singles):
                    board &= ~grid.peers[cell]
                candidates[digit] = board
        elif solved_cells == grid.all_cells:
            return solved_cells
        else:
            hidden = _fix_hidden_singles(candidates, solved_cells, grid)
            if hidden is None:
                return None
            if not hidden:
                return solved_cells


def _fix_hidden_singles(candidates: Candidates, solved_cells: int, grid: Geometry) -> bool | None:
    """Make digits with one place in a unit the only candidate there; None at a contradiction."""
    changed = False
    for digit, board in enumerate(candidates):
        hidden = 0
        for unit in grid.units:
            places = board & unit
            if not places:
                return None
            if not places & (places - 1):
                hidden |= places
        if hidden := hidden & ~solved_cells:
            changed = True
            for other in range(grid.size):
                if other != digit:
                    candidates[other] &= ~hidden
    return changed


def find_solution(
    candidates: Candidates, solved_cells: int, grid: Geometry, rng: random.Random | None = None
) -> Candidates | None:
    """A solution that the candidates allow, if any; with a generator, a random one."""
    solved_after = propagate(candidates, solved_cells, grid)
    if solved_after is None:
        return None
    if solved_after == grid.all_cells:
        return candidates
    # One open cell: with two candidates, if there is such a cell.
    once = twice = thrice = 0
    for board in candidates:
        thrice |= twice & board
        twice |= once & board
        once |= board
    open_cells = twice & ~thrice or grid.all_cells & ~solved_after
    place = open_cells & -open_cells
    digits = [digit for digit, board in enumerate(candidates) if board & place]
    if rng is not None:
        rng.shuffle(digits)
    for digit in digits:
        branch = [board & ~place for board in candidates]
        branch[digit] |= place
        if (solution := find_solution(branch, solved_after, grid, rng)) is not None:
            return solution
    return None
