"""Action and observation of the sudoku environment, for clients."""

from __future__ import annotations

from pydantic import Field

from ludus.protocol.types import Action, TextObservation


class SudokuAction(Action):
    """Write a digit into a cell, or empty the cell with 0."""

    row: int = Field(description="Row of the cell, counted from the top, from 1.")
    column: int = Field(description="Column of the cell, counted from the left, from 1.")
    digit: int = Field(description="The digit to write; 0 removes a digit that you placed.")


class SudokuObservation(TextObservation):
    """The grid, in `text`."""
