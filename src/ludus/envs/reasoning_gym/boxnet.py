"""A planner for BoxNet: boxes on a grid, each to be moved to a target of its colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
