"""Catch: a ball falls through a grid and a paddle at the bottom has to be under it."""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field

from ludus.client.env_client import EnvClient
from ludus.data.tool_schema import ToolCall
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import tool
from ludus.protocol.types import Action, State, TextObservation

Direction = Literal["left", "stay", "right"]


class CatchAction(Action):
    """Move the paddle by one column; the ball falls by one row."""

    direction: Direction = Field(description="Where the paddle goes.")


class CatchObservation(TextObservation):
    """The grid, in `text`."""


class CatchEnv(EnvClient[CatchAction, CatchObservation, State]):
    """A typed client for a catch server."""


_SHIFT = {"left": -1, "stay": 0, "right": 1}

_RULES = """\
A ball falls one row with every move. Catch it with the paddle, which moves in the bottom row.
o is the ball, = is the paddle, and a dot is an empty cell.
Each move, the paddle goes one column to the left or to the right, or stays. At a wall it stops.
You score 1 if the paddle is in the column of the ball when the ball reaches the bottom row, else 0.

"""


class Catch(ToolEnvironment):
    """Move the paddle so that it is under the ball when the ball lands.

    Tools:
        move(direction): exactly `left`, `stay` or `right`; anything else is an error, not a move.
    Observation:
        The grid as text: `o` the ball, `=` the paddle, `.` nothing; and how far it has to fall.
    Reward:
        1.0 if the ball lands on the paddle, 0.0 if it lands beside it.
    Episode end:
        The ball reaches the bottom row; `rows` - 1 moves.
    Task arguments:
        seed: where the ball starts.
        rows: height of the grid (10).
        columns: width of the grid (5).
    """

    def reset(self, *, seed: int | None = None, rows: int = 10, columns: int = 5) -> str:
        if not (2 <= rows <= 100 and 2 <= columns <= 100):
            raise ValueError("rows and columns lie between 2 and 100.")
        if columns // 2 >= rows:
            raise ValueError(f"{rows} rows are too few to cross {columns} columns.")
        self.rows, self.columns = rows, columns
        self.max_turns = rows - 1
        self.fallen = 0
        self.ball = random.Random(seed).randrange(columns)
        self.paddle = columns // 2
        return _RULES + self._picture()

    @tool
    def move(self, direction: Direction) -> str:
        """Move the paddle by one column; the ball falls by one row.

        Args:
            direction: Where the paddle goes.
        """
        self.paddle = min(max(self.paddle + _SHIFT[direction], 0), self.columns - 1)
        self.fallen += 1
        if self.fallen < self.rows - 1:
            return self._picture()
        caught = self.paddle == self.ball
        verdict = "You caught the ball." if caught else "You missed the ball."
        return self.finish(float(caught), f"{verdict}\n{self._picture()}", caught=float(caught))

    def oracle(self, *, working: bool = False) -> ToolCall:
        offset = self.ball - self.paddle
        direction = "stay" if offset == 0 else "left" if offset < 0 else "right"
        text = ""
        if working:
            columns = f"o is in column {self.ball + 1}, = in column {self.paddle + 1}"
            text = f"{columns}: {direction}."
        return ToolCall(name="move", arguments={"direction": direction}, text=text)

    def progress(self) -> float:
        """How near the paddle is to the column of the ball; 0 if it cannot get there in time."""
        distance = abs(self.ball - self.paddle)
        in_time = distance <= self.rows - 1 - self.fallen
        return 1.0 - distance / (self.columns - 1) if in_time else 0.0

    def _picture(self) -> str:
        nothing = " ".join("." * self.columns)
        lines = [nothing] * self.rows
        lines[-1] = _replace_cell(nothing, self.paddle, "=")
        lines[self.fallen] = _replace_cell(lines[self.fallen], self.ball, "o")
        lines.append(f"Rows left to fall: {self.rows - 1 - self.fallen}")
        return "\n".join(lines)


def _replace_cell(line: str, column: int, symbol: str) -> str:
    return f"{line[: 2 * column]}{symbol}{line[2 * column + 1 :]}"
