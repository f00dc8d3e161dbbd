"""Sudoku: fill a grid so that no row, column or box has a digit twice."""

from ludus.envs.sudoku.client import SudokuEnv
from ludus.envs.sudoku.environment import Sudoku
from ludus.envs.sudoku.models import SudokuAction, SudokuObservation

__all__ = ["Sudoku", "SudokuAction", "SudokuEnv", "SudokuObservation"]
