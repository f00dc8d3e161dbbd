"""Solvers of some games: the next message, for any state of a game; None if there is none.

They know the mines and the solution of a Sudoku; in guessing games, only what the game has told.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ludus.data.tool_schema import JsonObject

if TYPE_CHECKING:
    from textarena import Env

_MAX_CODES = 20_000
"""Mastermind: with more codes than this the secret one is guessed."""


def _guess_number(game: Env) -> str:
    low, high = game.min_number, game.max_number
    for guess, hint in game.state.game_state["guess_history"]:
        if hint == "higher":
            low = max(low, guess + 1)
        else:
            high = min(high, guess - 1)
    return f"[{(low + high) // 2}]"


def _mastermind(game: Env) -> str:
    state = game.state.game_state
    code: Sequence[int] = state["secret_code"]
    if state["num_numbers"] ** state["code_length"] <= _MAX_CODES:
        code = next(_consistent_codes(state))
    return f"[{' '.join(map(str, code))}]"


def _consistent_codes(state: JsonObject) -> Iterator[tuple[int, ...]]:
    digits = range(1, state["num_numbers"] + 1)
    length = state["code_length"]
    codes = (
        itertools.product(digits, repeat=length)
        if state["duplicate_numbers"]
        else itertools.permutations(digits, length)
    )
    for code in codes:
        if all(
            _pegs(entry["guess"], code) == (entry["black"], entry["white"])
            for entry in state["history"]
        ):
            yield code


def _pegs(guess: Sequence[int], code: Sequence[int]) -> tuple[int, int]:
    black = sum(a == b for a, b in zip(guess, code, strict=True))
    return black, (Counter(guess) & Counter(code)).total() - black


def _tower_of_hanoi(game: Env) -> str | None:
    towers = game.state.game_state["towers"]
    tower_of = {disk: name for name, disks in towers.items() for disk in disks}
    target, move = "C", None
    # From the largest disk down: the first one that is not in place must move to its target, and
    # before it all smaller ones to the third tower.
    for disk in range(game.num_disks, 0, -1):
        source = tower_of[disk]
        if source != target:
            move = f"[{source} {target}]"
            target = next(name for name in "ABC" if name not in (source, target))
    return move


def _lights_out(game: Env) -> str | None:
    grid = game.state.game_state["grid"]
    cells = list(itertools.product(range(game.size), repeat=2))
    # One equation per light, as bits: the presses that toggle it, and above them whether it is on.
    rows = []
    for row, column in cells:
        bits = int(grid[row][column]) << len(cells)
        for index, (r, c) in enumerate(cells):
            bits |= int(abs(r - row) + abs(c - column) <= 1) << index
        rows.append(bits)
    pivots: dict[int, int] = {}
    for bits in rows:
        for column, pivot in pivots.items():
            if bits >> column & 1:
                bits ^= pivot
        lowest = (bits & -bits).bit_length() - 1
        if 0 <= lowest < len(cells):
            for column in pivots:
                if pivots[column] >> lowest & 1:
                    pivots[column] ^= bits
            pivots[lowest] = bits
    pressed = [column for column, bits in pivots.items() if bits >> len(cells) & 1]
    return "[{} {}]".format(*cells[min(pressed)]) if pressed else None


def _frozen_lake(game: Env) -> str | None:
    state = game.state.game_state
    queue = deque([(state["player_pos"], "")])
    seen = {state["player_pos"]}
    while queue:
        (row, column), first = queue.popleft()
        if (row, column) == state["goal_pos"]:
            return f"[{first}]"
        for name, (down, right) in game.actions.items():
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < game.size and 0 <= cell[1] < game.size
            if inside and cell not in seen and state["grid"][cell[0]][cell[1]] != "H":
                seen.add(cell)
                queue.append((cell, first or name))
    return None


def _minesweeper(game: Env) -> str | None:
    if game.first_move:
        return f"[{game.rows // 2} {game.cols // 2}]"
    for row, column in itertools.product(range(game.rows), range(game.cols)):
        if not game.revealed[row][column] and game.grid[row][column] != -1:
            return f"[{row} {column}]"
    return None


def _sudoku(game: Env) -> str | None:
    for row, column in itertools.product(range(9), repeat=2):
        if game.state.game_state["board"][row][column] == 0:
            return f"[{row + 1} {column + 1} {game.full_grid[row][column]}]"
    return None


SOLVERS: Mapping[str, Callable[[Env], str | None]] = {
    "FrozenLake": _frozen_lake,
    "GuessTheNumber": _guess_number,
    "LightsOut": _lights_out,
    "Mastermind": _mastermind,
    "Minesweeper": _minesweeper,
    "Sudoku": _sudoku,
    "TowerOfHanoi": _tower_of_hanoi,
}
"""By the name before `-v0`."""
