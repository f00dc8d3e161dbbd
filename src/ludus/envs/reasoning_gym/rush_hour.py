"""A solver for Rush Hour boards: breadth-first search, which finds the fewest slides."""

from __future__ import annotations

from collections.abc import Iterator

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


def solve(picture: str) -> str:
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
