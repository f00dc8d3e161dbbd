"""A typed client for a sudoku server."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.sudoku.models import SudokuAction, SudokuObservation
from ludus.protocol.types import State


class SudokuEnv(EnvClient[SudokuAction, SudokuObservation, State]):
    """A typed client for a sudoku server.

    with SudokuEnv(base_url="http://localhost:8000").sync() as client:
        print(client.reset(seed=7).observation.text)
        result = client.step(SudokuAction(row=1, column=3, digit=4))
    """
