from __future__ import annotations

import random
from typing import Any

import pytest

from ludus.envs.sudoku import Sudoku, SudokuAction
from ludus.envs.sudoku.puzzles import CLUES, Difficulty, Size, make_puzzle
from ludus.protocol.types import TextObservation


def place(environment: Sudoku, row: int, column: int, digit: int) -> TextObservation:
    seen = environment.step(SudokuAction(row=row, column=column, digit=digit))
    assert isinstance(seen, TextObservation)
    return seen


def game(seed: int = 0, **task: Any) -> Sudoku:
    environment = Sudoku()
    environment.reset(seed=seed, **task)
    return environment


def oracle_move(environment: Sudoku) -> dict[str, int]:
    call = environment.oracle()
    assert call is not None
    return call.arguments


def play_oracle(environment: Sudoku) -> tuple[float, dict[str, float], int]:
    """The rest of the return, its parts, and the number of moves."""
    total, parts, moves = 0.0, {"progress": 0.0, "solved": 0.0}, 0
    while True:
        seen = place(environment, **oracle_move(environment))
        assert "error" not in seen.metadata
        moves += 1
        total += seen.reward or 0.0
        for name, value in seen.metadata.get("rewards", {}).items():
            parts[name] += value
        if seen.done:
            return total, parts, moves


def neighbours(size: int, cell: int) -> set[int]:
    box = int(size**0.5)
    row, column = divmod(cell, size)
    return {
        other
        for other in range(size * size)
        if other != cell
        and (
            other // size == row
            or other % size == column
            or (other // size // box, other % size // box) == (row // box, column // box)
        )
    }


def count_solutions(size: int, digits: list[int], limit: int = 2) -> int:
    """Plain backtracking, which shares nothing with the solver of the environment."""
    peers = [neighbours(size, cell) for cell in range(size * size)]

    def options(cell: int) -> set[int]:
        return set(range(1, size + 1)) - {digits[peer] for peer in peers[cell]}

    def count(found: int) -> int:
        blank = [cell for cell, digit in enumerate(digits) if digit == 0]
        if not blank:
            return found + 1
        cell = min(blank, key=lambda cell: len(options(cell)))
        for digit in options(cell):
            digits[cell] = digit
            found = count(found)
            digits[cell] = 0
            if found >= limit:
                break
        return found

    return count(0)


@pytest.mark.parametrize(("size", "difficulty"), CLUES)
def test_a_puzzle_has_one_solution_which_is_known(size: Size, difficulty: Difficulty) -> None:
    for seed in range(30 if size == 4 else 3):
        givens, solution = make_puzzle(size, difficulty, seed)
        assert count_solutions(size, list(givens)) == 1
        assert count_solutions(size, list(solution)) == 1
        assert all(given in (0, right) for given, right in zip(givens, solution, strict=True))
        for cell, digit in enumerate(solution):
            assert digit not in {solution[other] for other in neighbours(size, cell)}


@pytest.mark.parametrize(("size", "difficulty"), CLUES)
def test_difficulty_sets_the_number_of_given_digits(size: Size, difficulty: Difficulty) -> None:
    for seed in range(8):
        given = len([digit for digit in make_puzzle(size, difficulty, seed).givens if digit])
        spare = 3 if difficulty == "hard" else 0
        assert CLUES[size, difficulty] <= given <= CLUES[size, difficulty] + spare


@pytest.mark.parametrize("size", [4, 9])
def test_medium_puzzles_need_no_trying(size: Size) -> None:
    givens, _ = make_puzzle(size, "medium", 5)
    digits, cells = list(givens), range(size * size)
    peers = [neighbours(size, cell) for cell in cells]
    box = int(size**0.5)
    boxes = [cell // size // box * box + cell % size // box for cell in cells]
    units = [
        *([cell for cell in cells if cell // size == row] for row in range(size)),
        *([cell for cell in cells if cell % size == column] for column in range(size)),
        *([cell for cell in cells if boxes[cell] == number] for number in range(size)),
    ]

    def forced() -> tuple[int, int] | None:
        options = {
            cell: set(range(1, size + 1)) - {digits[peer] for peer in peers[cell]}
            for cell in cells
            if digits[cell] == 0
        }
        for unit in units:
            for digit in range(1, size + 1):
                places = [cell for cell in unit if digit in options.get(cell, ())]
                if len(places) == 1:
                    return places[0], digit
        return next(((c, min(o)) for c, o in options.items() if len(o) == 1), None)

    while (move := forced()) is not None:
        digits[move[0]] = move[1]
    assert 0 not in digits


def test_seeds_keep_their_puzzles_from_release_to_release() -> None:
    givens = ["".join(map(str, make_puzzle(4, "easy", seed).givens)) for seed in (0, 1)]
    assert givens == ["0120201313024200", "4310003401033401"]
    assert len({make_puzzle(9, "easy", seed) for seed in range(5)}) == 5


def test_the_first_observation_has_the_rules_and_the_grid() -> None:
    environment = Sudoku()
    shown = environment.reset(seed=0, size=9)
    assert "3x3" in shown and "1 to 9" in shown and "dot is an empty cell" in shown
    rows = [line for line in shown.splitlines() if line[:3] in {f"{n} |" for n in range(1, 10)}]
    cells = [symbol for row in rows for symbol in row[3:] if symbol not in " |"]
    assert [0 if cell == "." else int(cell) for cell in cells] == list(environment.givens)


def test_a_digit_appears_in_the_reply_and_earns_its_share() -> None:
    environment = game(size=9)
    blanks = environment.empty
    move = oracle_move(environment)
    seen = place(environment, **move)
    assert seen.reward == pytest.approx(0.5 / blanks)
    assert seen.metadata["rewards"] == {"progress": pytest.approx(1 / blanks)}
    line = next(line for line in seen.text.splitlines() if line.startswith(f"{move['row']} |"))
    cells = line[3:].replace(" ", "").replace("|", "")
    assert cells[move["column"] - 1] == str(move["digit"])
    assert f"Empty cells: {blanks - 1}." in seen.text


def test_removing_a_right_digit_takes_its_share_back() -> None:
    environment = game()
    move = oracle_move(environment)
    gained = place(environment, **move).reward
    lost = place(environment, **{**move, "digit": 0})
    assert gained and lost.reward == -gained
    assert lost.metadata["rewards"]["progress"] < 0
    total, parts, _ = play_oracle(environment)
    assert total == pytest.approx(1.0)
    assert parts == pytest.approx({"progress": 1.0, "solved": 1.0})


def test_a_wrong_digit_is_accepted_and_can_be_replaced() -> None:
    environment = game(size=9, difficulty="hard")
    cell, wrong = next(
        (cell, digit)
        for cell, given in enumerate(environment.givens)
        for digit in environment._legal_digits(cell)
        if given == 0 and digit != environment.solution[cell]
    )
    row, column = cell // 9 + 1, cell % 9 + 1
    assert place(environment, row, column, wrong).reward is None
    seen = place(environment, row, column, environment.solution[cell])
    assert seen.reward is not None and seen.reward > 0


def refusals(environment: Sudoku) -> dict[str, tuple[int, int, int]]:
    """A refused move for each rule, for a fresh grid of size 4."""
    moves = {
        "Rows and columns are from 1 to 4": (5, 1, 1),
        "not row 1, column 0": (1, 0, 1),
        "Digits are from 1 to 4": (1, 1, 5),
        "not -1": (1, 1, -1),
    }
    for cell, given in enumerate(environment.givens):
        row, column = divmod(cell, 4)
        if given:
            moves["which stays"] = (row + 1, column + 1, given % 4 + 1)
            continue
        moves["is empty"] = (row + 1, column + 1, 0)
        for digit in range(1, 5):
            in_row = digit in environment.digits[row * 4 : row * 4 + 4]
            in_column = digit in environment.digits[column::4]
            place = (row + 1, column + 1, digit)
            if in_row:
                moves[f"Row {row + 1} has a {digit}"] = place
            elif in_column:
                moves[f"Column {column + 1} has a {digit}"] = place
            elif digit not in environment._legal_digits(cell):
                moves[f"box of row {row + 1}, column {column + 1} has a {digit}"] = place
    return moves


def test_an_illegal_move_is_refused_with_its_rule_and_changes_nothing() -> None:
    kinds = set()
    for seed in range(10):
        for rule, move in refusals(game(seed, difficulty="hard")).items():
            environment = game(seed, difficulty="hard")
            turns = environment.turns_left
            seen = place(environment, *move)
            assert seen.metadata["error"]["error_type"] == "execution_error"
            assert rule in seen.metadata["error"]["message"]
            assert environment._render_grid() in seen.text
            assert tuple(environment.digits) == environment.givens
            assert environment.turns_left == turns - 1
            assert seen.reward is None and not seen.done
            kinds.add(rule.split()[0])
    assert {"Row", "Column", "box", "which", "is", "Digits"} <= kinds


def test_a_refused_last_turn_ends_the_episode() -> None:
    seen = place(game(max_turns=1), 1, 1, 5)
    assert seen.done and seen.reward == 0.0
    assert seen.metadata["rewards"] == {"solved": 0.0}


def test_an_unsolved_grid_keeps_its_progress() -> None:
    environment = game(max_turns=2)
    blanks = environment.empty
    total, parts, moves = play_oracle(environment)
    assert moves == 2 and total == pytest.approx(0.5 * 2 / blanks)
    assert parts == pytest.approx({"progress": 2 / blanks, "solved": 0.0})


@pytest.mark.parametrize(("size", "difficulty"), CLUES)
@pytest.mark.parametrize("seeds", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_the_oracle_solves_without_a_wasted_move(
    size: Size, difficulty: Difficulty, seeds: int
) -> None:
    for seed in range(seeds):
        environment = game(seed, size=size, difficulty=difficulty)
        blanks = environment.empty
        total, parts, moves = play_oracle(environment)
        assert total == pytest.approx(1.0) and moves == blanks
        assert environment.oracle() is None
        assert parts == pytest.approx({"progress": 1.0, "solved": 1.0})


@pytest.mark.parametrize("size", [4, 9])
def test_the_oracle_repairs_a_grid_that_is_stuck(size: Size) -> None:
    removals = 0
    for seed in range(12):
        environment = game(seed, size=size, difficulty="hard", max_turns=1000)
        earned, rng = 0.0, random.Random(seed)
        while True:
            legal = [
                (cell, digit)
                for cell, present in enumerate(environment.digits)
                for digit in environment._legal_digits(cell)
                if present == 0 and digit != environment.solution[cell]
            ]
            if not legal:
                break
            cell, digit = rng.choice(legal)
            seen = place(environment, cell // size + 1, cell % size + 1, digit)
            earned += seen.reward or 0.0
        wrong = environment.blanks - environment.empty
        assert wrong and earned == 0.0
        total, _, moves = play_oracle(environment)
        assert total == pytest.approx(1.0)
        assert environment.blanks <= moves <= environment.blanks + wrong
        removals += moves - environment.blanks
    assert removals  # Some of these grids cannot be repaired by replacing digits alone.
