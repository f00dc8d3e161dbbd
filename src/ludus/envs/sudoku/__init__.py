"""Sudoku: fill a grid so that no row, column or box has a digit twice."""

from __future__ import annotations

import math
import random
from functools import cache

from pydantic import Field

from ludus.client.env_client import EnvClient
from ludus.data.tool_schema import ToolCall
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import tool
from ludus.envs.sudoku.puzzles import Difficulty, Size, cells_of, geometry, make_puzzle
from ludus.errors import ToolError
from ludus.protocol.types import Action, State, TextObservation


class SudokuAction(Action):
    """Write a digit into a cell, or empty the cell with 0."""

    row: int = Field(description="Row of the cell, counted from the top, from 1.")
    column: int = Field(description="Column of the cell, counted from the left, from 1.")
    digit: int = Field(description="The digit to write; 0 removes a digit that you placed.")


class SudokuObservation(TextObservation):
    """The grid, in `text`."""


class SudokuEnv(EnvClient[SudokuAction, SudokuObservation, State]):
    """A typed client for a sudoku server."""


PROGRESS_REWARD, SOLVED_REWARD = 0.5, 0.5

_RULES = """\
Fill the grid so that every row, every column and every {box}x{box} box has each digit from 1 to \
{size} once.
Each turn, place one digit in a cell. Rows are counted from the top and columns from the left, \
both from 1. A dot is an empty cell.
You can replace a digit that you placed, and remove it by placing 0. The given digits stay.
A digit that is already in the same row, column or box is refused, and the turn is used up.
The puzzle has one solution. Half of the score is for digits that belong where they are, half for \
a full grid.
"""


@cache
def _grid_template(size: int) -> str:
    """The grid, with a place for the cells of each row."""
    box = math.isqrt(size)
    boxes = (range(first, first + box) for first in range(1, size + 1, box))
    lines = ["    " + "   ".join(" ".join(map(str, columns)) for columns in boxes)]
    for row in range(1, size + 1):
        if row % box == 1:
            lines.append("  " + box * ("+" + "-" * (2 * box + 1)))
        lines.append(f"{row} | %s")
    return "\n".join([*lines, "Empty cells: %d. Turns left: %d"])


class Sudoku(ToolEnvironment):
    """Fill a sudoku grid, digit by digit.

    Tools:
        place(row, column, digit): writes a digit into an empty cell or over a digit that was
            placed before; 0 removes such a digit. A move that breaks a rule is refused with an
            error that names it, and uses up a turn.
    Observation:
        The rules; then after every move, also a refused one, the grid with its row and column
        numbers (`.` is an empty cell), how many cells are empty and how many turns are left.
    Reward:
        0.5 / empty cells for each digit that is placed where the solution has it, and as much less
        for each that is removed from there; 0.5 for the full grid. The most is 1.0.
        Its parts: `progress`, the fraction of cells that are right, and `solved`.
    Episode end:
        The grid is full, or `max_turns` turns are used up.
    Task arguments:
        seed: picks the puzzle.
        size: 4 (the default) or 9 rows and columns.
        difficulty: `easy` (the default), `medium` or `hard`, with 10, 8 or 5 given digits in
            a grid of size 4, and with 45, 36 or about 26 in one of size 9. Easy and medium puzzles
            need no guessing: there is always a cell or a digit with one possibility left.
        max_turns: how many moves there are, with refused ones (twice the number of empty cells).
    """

    def reset(
        self,
        *,
        seed: int | None = None,
        size: Size = 4,
        difficulty: Difficulty = "easy",
        max_turns: int | None = None,
    ) -> str:
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns must be positive, got {max_turns}.")
        if seed is None:
            seed = random.SystemRandom().getrandbits(63)
        self.givens, self.solution = make_puzzle(size, difficulty, seed)
        self.size = size
        self.box = math.isqrt(size)
        self.digits = list(self.givens)
        self.empty = self.blanks = self.givens.count(0)
        self.right = 0  # Cells to fill that have their right digit.
        self.max_turns = self.turns_left = max_turns or 2 * self.blanks
        self._cells_of_digit = [0] * (size + 1)  # As bitboards; of 0 the empty cells.
        for cell, digit in enumerate(self.givens):
            self._cells_of_digit[digit] |= 1 << cell
        self._lines = [self._row_text(row) for row in range(size)]
        return f"{_RULES.format(size=size, box=self.box)}\n{self._render_grid()}"

    @tool
    def place(self, row: int, column: int, digit: int) -> str:
        """Write a digit into a cell, or empty the cell with 0.

        Args:
            row: Row of the cell, counted from the top, from 1.
            column: Column of the cell, counted from the left, from 1.
            digit: The digit to write; 0 removes a digit that you placed.
        """
        self.turns_left -= 1
        if violation := self._rule_violation(row, column, digit):
            if self.turns_left == 0:
                self.finish(0.0, solved=0.0)
            raise ToolError(f"{violation}\n{self._render_grid()}")
        cell = (row - 1) * self.size + column - 1
        before, right = self.digits[cell], self.solution[cell]
        self._cells_of_digit[before] ^= 1 << cell
        self._cells_of_digit[digit] ^= 1 << cell
        self.digits[cell] = digit
        self.empty += (before != 0) - (digit != 0)
        self._lines[row - 1] = self._row_text(row - 1)
        if change := (digit == right) - (before == right):
            self.right += change
            self.award(PROGRESS_REWARD * change / self.blanks, progress=change / self.blanks)
        if self.empty == 0:
            # No rule is broken, so that this is the only solution.
            return self.finish(SOLVED_REWARD, f"{self._render_grid()}\nSolved.", solved=1.0)
        if self.turns_left == 0:
            return self.finish(0.0, f"{self._render_grid()}\nThe game is over.", solved=0.0)
        return self._render_grid()

    def oracle(self, *, rng: random.Random | None = None) -> ToolCall | None:
        """A right digit in the cell that has the fewest possibilities.

        If all have several, in a cell where the digit must be, if there is one. Of several such
        cells `rng` chooses one. If wrong digits exclude the right ones everywhere, the removal of
        one of them.
        """
        possible = {
            cell: self._legal_digits(cell)
            for cell, digit in enumerate(self.digits)
            if digit != self.solution[cell]
        }
        if not possible:
            return None
        placeable = [cell for cell in possible if self.solution[cell] in possible[cell]]
        if not placeable:
            return self._move(next(cell for cell in possible if self.digits[cell]), 0)
        fewest = min(len(possible[cell]) for cell in placeable)
        cells = [cell for cell in placeable if len(possible[cell]) == fewest]
        if fewest > 1:
            # Cells whose digit no other empty cell of the row, the column or the box can have.
            grid, empty = geometry(self.size), self._cells_of_digit[0]
            forced = []
            for cell in placeable:
                same, others = self._cells_of_digit[self.solution[cell]], empty & ~(1 << cell)
                if any(
                    all(same & grid.peers[other] for other in cells_of(unit & others))
                    for unit in grid.units
                    if unit >> cell & 1
                ):
                    forced.append(cell)
            cells = forced or cells
        cell = cells[0] if rng is None else rng.choice(cells)
        return self._move(cell, self.solution[cell])

    def random_action(self, rng: random.Random) -> ToolCall | None:
        """A digit that breaks no rule in an empty cell; if there is none, a removal."""
        empty = list(cells_of(self._cells_of_digit[0]))
        rng.shuffle(empty)
        for cell in empty:
            if legal := self._legal_digits(cell):
                return self._move(cell, rng.choice(legal))
        placed = [
            cell for cell in range(self.size**2) if self.digits[cell] and not self.givens[cell]
        ]
        return self._move(rng.choice(placed), 0) if placed else None

    def progress(self) -> float:
        """The fraction of the empty cells that have their right digits."""
        return self.right / self.blanks

    def _move(self, cell: int, digit: int) -> ToolCall:
        row, column = divmod(cell, self.size)
        arguments = {"row": row + 1, "column": column + 1, "digit": digit}
        return ToolCall(name="place", arguments=arguments)

    def _legal_digits(self, cell: int) -> list[int]:
        """The digits that break no rule in a cell, other than the one that it has."""
        peers, here = geometry(self.size).peers[cell], self.digits[cell]
        return [
            digit
            for digit in range(1, self.size + 1)
            if digit != here and not self._cells_of_digit[digit] & peers
        ]

    def _rule_violation(self, row: int, column: int, digit: int) -> str | None:
        """Which rule a move breaks; None if it is legal."""
        size = self.size
        if not (1 <= row <= size and 1 <= column <= size):
            return f"Rows and columns are from 1 to {size}, and not row {row}, column {column}."
        if not 0 <= digit <= size:
            return f"Digits are from 1 to {size}, or 0 to remove one, and not {digit}."
        cell = (row - 1) * size + column - 1
        here = f"Row {row}, column {column}"
        if self.givens[cell]:
            return f"{here} has the given digit {self.givens[cell]}, which stays."
        if self.digits[cell] == digit:
            return f"{here} has the digit {digit} already." if digit else f"{here} is empty."
        if digit == 0:
            return None
        units = [unit for unit in geometry(size).units if unit >> cell & 1]
        box = f"The {self.box}x{self.box} box of row {row}, column {column}"
        for name, unit in zip((f"Row {row}", f"Column {column}", box), units, strict=True):
            if self._cells_of_digit[digit] & unit:
                legal = ", ".join(map(str, self._legal_digits(cell))) or "none"
                return f"{name} has a {digit} already. Digits that can be placed there: {legal}."
        return None

    def _row_text(self, row: int) -> str:
        digits = self.digits[row * self.size : (row + 1) * self.size]
        cells = ["." if digit == 0 else str(digit) for digit in digits]
        boxes = (" ".join(cells[at : at + self.box]) for at in range(0, self.size, self.box))
        return " | ".join(boxes)

    def _render_grid(self) -> str:
        return _grid_template(self.size) % (*self._lines, self.empty, self.turns_left)
