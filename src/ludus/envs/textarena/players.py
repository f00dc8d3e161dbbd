"""Players of some games: the next message, for any state of a game; None if there is no move left.

The perfect ones use only what the game has told, except with the last guess of a guessing game.
"""

from __future__ import annotations

import itertools
import random
import string
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ludus.data.tool_schema import JsonObject
from ludus.envs.wordle.solver import next_guess

if TYPE_CHECKING:
    from textarena import Env

_MAX_CODES = 20_000
"""Mastermind: with more codes than this the secret one is guessed."""


class Player(NamedTuple):
    """How a game is played perfectly, and with random legal messages."""

    solve: Callable[[Env], str | None]
    draw: Callable[[Env, random.Random], str | None]


def _guess_number(game: Env) -> str:
    low, high = game.min_number, game.max_number
    for guess, hint in game.state.game_state["guess_history"]:
        if hint == "higher":
            low = max(low, guess + 1)
        else:
            high = min(high, guess - 1)
    return f"[{(low + high) // 2}]"


def _random_number(game: Env, rng: random.Random) -> str:
    numbers = range(game.min_number, game.max_number + 1)
    return f"[{rng.choice([n for n in numbers if n not in game.guessed_numbers])}]"


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


def _random_code(game: Env, rng: random.Random) -> str:
    state = game.state.game_state
    digits = range(1, state["num_numbers"] + 1)
    earlier = [entry["guess"] for entry in state["history"]]
    draw = rng.choices if state["duplicate_numbers"] else rng.sample
    while (code := draw(digits, k=state["code_length"])) in earlier:
        pass
    return f"[{' '.join(map(str, code))}]"


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


def _random_disk(game: Env, rng: random.Random) -> str:
    towers = game.state.game_state["towers"]
    moves = [
        f"[{source} {target}]"
        for source, target in itertools.permutations(towers, 2)
        if towers[source] and (not towers[target] or towers[source][-1] < towers[target][-1])
    ]
    return rng.choice(moves)


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


def _random_light(game: Env, rng: random.Random) -> str:
    return f"[{rng.randrange(game.size)} {rng.randrange(game.size)}]"


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


def _random_step(game: Env, rng: random.Random) -> str:
    row, column = game.state.game_state["player_pos"]
    inside = range(game.size)
    moves = [
        name
        for name, (down, right) in game.actions.items()
        if row + down in inside and column + right in inside
    ]
    return f"[{rng.choice(moves)}]"


def _minesweeper(game: Env) -> str | None:
    if game.first_move:
        return f"[{game.rows // 2} {game.cols // 2}]"
    for row, column in itertools.product(range(game.rows), range(game.cols)):
        if not game.revealed[row][column] and game.grid[row][column] != -1:
            return f"[{row} {column}]"
    return None


def _random_cell(game: Env, rng: random.Random) -> str | None:
    """A hidden cell without a mine: the library takes a mine for an invalid move."""
    cells = itertools.product(range(game.rows), range(game.cols))
    hidden = [
        f"[{row} {column}]"
        for row, column in cells
        if not game.revealed[row][column] and (game.first_move or game.grid[row][column] != -1)
    ]
    return rng.choice(hidden) if hidden else None


def _sudoku(game: Env) -> str | None:
    for row, column in itertools.product(range(9), repeat=2):
        if game.state.game_state["board"][row][column] == 0:
            return f"[{row + 1} {column + 1} {game.full_grid[row][column]}]"
    return None


def _random_digit(game: Env, rng: random.Random) -> str | None:
    board = game.state.game_state["board"]
    moves = [
        f"[{row + 1} {column + 1} {digit}]"
        for row, column in itertools.product(range(9), repeat=2)
        if board[row][column] == 0
        for digit in range(1, 10)
        if game._is_move_correct(row, column, digit)
    ]
    return rng.choice(moves) if moves else None


def _wordle(game: Env) -> str:
    state = game.state.game_state
    marks_by_word = {word: "".join(marks) for word, marks in state["guess_history"]}
    word = state["secret_word"]
    if len(marks_by_word) < state["num_guesses"] - 1:
        candidates = sorted({word for word in game.word_list if word.islower() and word.isalpha()})
        word = next_guess(marks_by_word, candidates, candidates)
    return f"[{word}]"


def _random_word(game: Env, rng: random.Random) -> str:
    earlier = {word for word, _ in game.state.game_state["guess_history"]}
    words = [word for word in game.word_list if word.islower() and word.isalpha()]
    while (word := rng.choice(words)) in earlier:
        pass
    return f"[{word}]"


def _hangman(game: Env) -> str:
    state = game.state.game_state
    board, guessed = state["current_board"], state["guessed_letters"]
    misses = guessed - set(board)
    possible = [
        word
        for word in sorted({word.upper() for word in game.word_list})
        if len(word) == len(board)
        and all(letter in ("_", own) for letter, own in zip(board, word, strict=True))
        and not any(
            own in guessed for letter, own in zip(board, word, strict=True) if letter == "_"
        )
        and not misses & set(word)
    ]
    letters = Counter(letter for word in possible for letter in set(word) if letter.isalpha())
    unguessed = [letter for letter in sorted(letters) if letter not in guessed]
    if state["tries_left"] == 1 or len(possible) == 1 or not unguessed:
        return f"[{state['target_word']}]"
    return f"[{max(unguessed, key=lambda letter: letters[letter])}]"


def _random_letter(game: Env, rng: random.Random) -> str:
    guessed = game.state.game_state["guessed_letters"]
    return f"[{rng.choice([c for c in string.ascii_uppercase if c not in guessed])}]"


PLAYERS = {
    "FrozenLake": Player(_frozen_lake, _random_step),
    "GuessTheNumber": Player(_guess_number, _random_number),
    "Hangman": Player(_hangman, _random_letter),
    "LightsOut": Player(_lights_out, _random_light),
    "Mastermind": Player(_mastermind, _random_code),
    "Minesweeper": Player(_minesweeper, _random_cell),
    "Sudoku": Player(_sudoku, _random_digit),
    "TowerOfHanoi": Player(_tower_of_hanoi, _random_disk),
    "Wordle": Player(_wordle, _random_word),
}
"""By the name before `-v0`."""
