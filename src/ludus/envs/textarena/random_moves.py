"""Random legal messages in the games that have an oracle, for any state of the game."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Callable
from typing import Any


def _guess_number(game: Any, rng: random.Random) -> str:
    numbers = range(game.min_number, game.max_number + 1)
    return f"[{rng.choice([n for n in numbers if n not in game.guessed_numbers])}]"


def _mastermind(game: Any, rng: random.Random) -> str:
    state = game.state.game_state
    digits = range(1, state["num_numbers"] + 1)
    earlier = [entry["guess"] for entry in state["history"]]
    draw = rng.choices if state["duplicate_numbers"] else rng.sample
    while (code := draw(digits, k=state["code_length"])) in earlier:
        pass
    return f"[{' '.join(map(str, code))}]"


def _tower_of_hanoi(game: Any, rng: random.Random) -> str:
    towers = game.state.game_state["towers"]
    moves = [
        f"[{source} {target}]"
        for source, target in itertools.permutations(towers, 2)
        if towers[source] and (not towers[target] or towers[source][-1] < towers[target][-1])
    ]
    return rng.choice(moves)


def _lights_out(game: Any, rng: random.Random) -> str:
    return f"[{rng.randrange(game.size)} {rng.randrange(game.size)}]"


def _frozen_lake(game: Any, rng: random.Random) -> str:
    row, column = game.state.game_state["player_pos"]
    inside = range(game.size)
    moves = [
        name
        for name, (down, right) in game.actions.items()
        if row + down in inside and column + right in inside
    ]
    return f"[{rng.choice(moves)}]"


def _minesweeper(game: Any, rng: random.Random) -> str | None:
    """A hidden cell without a mine: the library takes a mine for an invalid move."""
    cells = itertools.product(range(game.rows), range(game.cols))
    hidden = [
        f"[{row} {column}]"
        for row, column in cells
        if not game.revealed[row][column] and (game.first_move or game.grid[row][column] != -1)
    ]
    return rng.choice(hidden) if hidden else None


def _sudoku(game: Any, rng: random.Random) -> str | None:
    board = game.state.game_state["board"]
    moves = [
        f"[{row + 1} {column + 1} {digit}]"
        for row, column in itertools.product(range(9), repeat=2)
        if board[row][column] == 0
        for digit in range(1, 10)
        if game._is_move_correct(row, column, digit)
    ]
    return rng.choice(moves) if moves else None


def _wordle(game: Any, rng: random.Random) -> str:
    earlier = {word for word, _ in game.state.game_state["guess_history"]}
    words = [word for word in game.word_list if word.islower() and word.isalpha()]
    while (word := rng.choice(words)) in earlier:
        pass
    return f"[{word}]"


def _hangman(game: Any, rng: random.Random) -> str:
    guessed = game.state.game_state["guessed_letters"]
    return f"[{rng.choice([c for c in string.ascii_uppercase if c not in guessed])}]"


RANDOM_MOVES: dict[str, Callable[[Any, random.Random], str | None]] = {
    "FrozenLake": _frozen_lake,
    "GuessTheNumber": _guess_number,
    "Hangman": _hangman,
    "LightsOut": _lights_out,
    "Mastermind": _mastermind,
    "Minesweeper": _minesweeper,
    "Sudoku": _sudoku,
    "TowerOfHanoi": _tower_of_hanoi,
    "Wordle": _wordle,
}
"""By the name before `-v0`."""
