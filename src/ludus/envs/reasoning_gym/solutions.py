"""The oracle: an answer with score 1.0 for every question, and for some the steps to it.

Most data sets have an answer; for the others it is computed from the metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

Metadata = Mapping[str, Any]


def perfect_answer(answer: str | None, metadata: Metadata) -> str:
    """An answer with score 1.0; `answer` is the data set's own, if it has one."""
    solve = _SOLVERS.get(metadata["source_dataset"])
    if answer is not None and solve is None:
        return answer
    if solve is None:
        raise NotImplementedError(f"No solver for {metadata['source_dataset']}.")
    return solve(metadata)


_SOLVERS: Mapping[str, Callable[[Metadata], str]] = {
    "boxnet": lambda metadata: json.dumps(plan_moves(metadata["initial_state"])),
    "graph_color": lambda metadata: json.dumps(metadata["possible_answer"]),
    "propositional_logic": lambda metadata: str(metadata["example_answer"]),
    "rubiks_cube": lambda metadata: str(metadata["example_correct_answer"]),
    "rush_hour": lambda metadata: solve_board(metadata["board_config"]),
}

_ANIMALS_BY_LEGS = {
    0: "flatworm, jellyfish, leech, sea slug, snake",
    2: "bird, chicken, duck, human",
    4: "cat, cow, deer, dog, elephant, giraffe, horse, lion, sheep, tiger",
    5: "starfish",
    6: "ant, bee, beetle, butterfly, cockroach, cricket, firefly, grasshopper, insect, "
    "praying mantis, wasp",
    8: "scorpion, spider",
    10: "crab, lobster, shrimp",
    14: "woodlouse",
}
_LEGS = {name: legs for legs, names in _ANIMALS_BY_LEGS.items() for name in names.split(", ")}


def write_working(answer: str, metadata: Metadata) -> str:
    """The steps to an answer; empty for data sets without a working."""
    write = _WORKINGS.get(metadata["source_dataset"])
    return "\n".join(write(answer, metadata)) if write is not None else ""


def _add_up_terms(answer: str, metadata: Metadata) -> Iterable[str]:
    first, *rest = metadata["expression"].split()
    total = Decimal(first)
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        change = Decimal(term) if sign == "+" else -Decimal(term)
        yield f"{total} {sign} {term} = {total + change}"
        total += change


def _multiply_by_digits(answer: str, metadata: Metadata) -> Iterable[str]:
    first, *factors = (int(term) for term in metadata["expression"].split(" * "))
    for factor in factors:
        total = 0
        for place, digit in enumerate(reversed(str(factor))):
            part = int(digit) * 10**place
            product = first * part
            yield f"{first} * {part} = {product}, {total} + {product} = {total + product}"
            total += product
        first = total


def _divide_with_remainder(answer: str, metadata: Metadata) -> Iterable[str]:
    """Euclid's algorithm, of the first two numbers, then of the result and the third…"""
    common, *others = metadata["numbers"]
    for other in others:
        large, small = max(common, other), min(common, other)
        while small:
            yield f"{large} = {large // small} * {small} + {large % small}"
            large, small = small, large % small
        common = large


def _spell_both_ways(answer: str, metadata: Metadata) -> Iterable[str]:
    return (" ".join(metadata["word"]), " ".join(answer))


def _count_by_word(answer: str, metadata: Metadata) -> Iterable[str]:
    letter, total = metadata["target_letter"], 0
    for word in metadata["span"]:
        if count := word.lower().count(letter.lower()):
            yield f"{' '.join(word)}: {total} + {count} = {total + count}"
            total += count


def _count_legs(answer: str, metadata: Metadata) -> Iterable[str]:
    total = 0
    for animal, count in metadata["animals"].items():
        product = count * _LEGS[animal]
        equation = f"{count} * {_LEGS[animal]} = {product}"
        yield f"{animal}: {equation}, {total} + {product} = {total + product}"
        total += product


_WORKINGS: Mapping[str, Callable[[str, Metadata], Iterable[str]]] = {
    "chain_sum": _add_up_terms,
    "decimal_chain_sum": _add_up_terms,
    "gcd": _divide_with_remainder,
    "leg_counting": _count_legs,
    "letter_counting": _count_by_word,
    "products": _multiply_by_digits,
    "spell_backward": _spell_both_ways,
}


Cell = tuple[float, float]
Move = tuple[str, str]
"""The agent, named after its cell, and what it does."""


def plan_moves(grid: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Plan the steps: one dictionary per step, in which every agent makes at most one move.

    `grid` lists for each cell, such as `0.5_1.5`, the boxes and targets in it. Each box takes the
    shortest path to a target, as early as the agents on the path are free.
    """
    steps: list[dict[str, str]] = []
    boxes, targets = _cells_by_color("box_", grid), _cells_by_color("target_", grid)
    for colour, starts in boxes.items():
        for start, target in zip(starts, targets[colour], strict=True):
            time = 0
            for agent, move in _box_moves(colour, start, target):
                while time < len(steps) and agent in steps[time]:
                    time += 1
                if time == len(steps):
                    steps.append({})
                steps[time][agent] = move
                time += 1
    return steps


def _cells_by_color(prefix: str, grid: Mapping[str, Sequence[str]]) -> dict[str, list[Cell]]:
    cells: dict[str, list[Cell]] = {}
    for name, things in grid.items():
        row, column = map(float, name.split("_"))
        for thing in things:
            if thing.startswith(prefix):
                cells.setdefault(thing.removeprefix(prefix), []).append((row, column))
    return cells


def _box_moves(colour: str, start: Cell, target: Cell) -> Iterator[Move]:
    row, column = start
    while (row, column) != target:
        there = row, column
        if row != target[0]:
            row += 1 if target[0] > row else -1
        else:
            column += 1 if target[1] > column else -1
        yield f"Agent[{there[0]}, {there[1]}]", f"move(box_{colour}, square[{row}, {column}])"
    yield f"Agent[{row}, {column}]", f"move(box_{colour}, target_{colour})"


SIDE = 6
_EXIT = SIDE - 2
"""The column of the red car's left end when it has reached the exit."""

Places = tuple[int, ...]
"""For each vehicle its position along its line."""


class Board:
    """The constant part of a board: the walls, and the line along which each vehicle moves."""

    def __init__(self, picture: str) -> None:
        """`picture`: row by row, a letter for each vehicle, `o` for nothing, `x` for a wall."""
        self.walls = sum(1 << cell for cell, mark in enumerate(picture) if mark == "x")
        self.start: Places = ()
        self.covers: list[list[int]] = []
        """For each vehicle and each position on its line, a bit mask of the cells it covers."""
        for letter in sorted(set(picture) - {"o", "x"}):
            cells = [cell for cell, mark in enumerate(picture) if mark == letter]
            row, column = divmod(cells[0], SIDE)
            across = cells[1] - cells[0] == 1
            first, stride = (row * SIDE, 1) if across else (column, SIDE)
            body = sum(1 << (first + stride * i) for i in range(len(cells)))
            self.covers.append([body << (stride * i) for i in range(SIDE - len(cells) + 1)])
            self.start += (column if across else row,)

    def slides(self, places: Places) -> Iterator[tuple[int, int]]:
        """Every vehicle that can move, and by how much."""
        taken = self.walls
        for cover, place in zip(self.covers, places, strict=True):
            taken |= cover[place]
        for vehicle, (cover, place) in enumerate(zip(self.covers, places, strict=True)):
            others = taken & ~cover[place]
            for ahead in (range(place + 1, len(cover)), range(place - 1, -1, -1)):
                for there in ahead:
                    if cover[there] & others:
                        break
                    yield vehicle, there - place


def solve_board(picture: str) -> str:
    """Slides that bring the red car A to the exit, such as `F+1 K-2 A+3`."""
    board = Board(picture)
    came_from: dict[Places, tuple[Places, str] | None] = {board.start: None}
    frontier = [board.start]
    while frontier:
        reached = []
        for places in frontier:
            if places[0] == _EXIT:
                return _retrace(came_from, places)
            for vehicle, by in board.slides(places):
                there = (*places[:vehicle], places[vehicle] + by, *places[vehicle + 1 :])
                if there not in came_from:
                    came_from[there] = places, f"{chr(ord('A') + vehicle)}{by:+d}"
                    reached.append(there)
        frontier = reached
    raise ValueError(f"The board {picture} has no solution.")


def _retrace(came_from: dict[Places, tuple[Places, str] | None], end: Places) -> str:
    slides = []
    step = came_from[end]
    while step is not None:
        places, slide = step
        slides.append(slide)
        step = came_from[places]
    return " ".join(reversed(slides))
