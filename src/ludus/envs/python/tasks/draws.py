"""Random values that several tasks draw their inputs from."""

from __future__ import annotations

import random
from string import ascii_lowercase

_WORDS = [
    "amber",
    "apple",
    "barn",
    "birch",
    "cedar",
    "civic",
    "cloud",
    "coral",
    "delta",
    "ember",
    "fern",
    "flint",
    "fox",
    "grove",
    "harbor",
    "heron",
    "inlet",
    "island",
    "jade",
    "kayak",
    "kettle",
    "lemon",
    "level",
    "lily",
    "maple",
    "meadow",
    "mint",
    "noon",
    "oak",
    "olive",
    "orbit",
    "otter",
    "pearl",
    "pine",
    "plum",
    "quartz",
    "radar",
    "raven",
    "reed",
    "river",
    "robin",
    "rotor",
    "sage",
    "seed",
    "spruce",
    "stone",
    "tide",
    "tulip",
    "violet",
    "willow",
    "wren",
    "yarrow",
]


def word(rng: random.Random) -> str:
    return rng.choice(_WORDS)


def words(rng: random.Random, fewest: int = 1, most: int = 6) -> list[str]:
    return [word(rng) for _ in range(rng.randint(fewest, most))]


def sentence(rng: random.Random, fewest: int = 2, most: int = 7) -> str:
    """Words between single blanks, some of them capitalized."""
    return " ".join(
        each.capitalize() if rng.random() < 0.3 else each for each in words(rng, fewest, most)
    )


def letters(
    rng: random.Random, fewest: int = 1, most: int = 8, *, of: str = ascii_lowercase
) -> str:
    return "".join(rng.choice(of) for _ in range(rng.randint(fewest, most)))


def integers(
    rng: random.Random, fewest: int = 1, most: int = 8, *, low: int = -9, high: int = 20
) -> list[int]:
    return [rng.randint(low, high) for _ in range(rng.randint(fewest, most))]


def matrix(rng: random.Random, rows: int, columns: int, *, high: int = 20) -> list[list[int]]:
    return [[rng.randint(0, high) for _ in range(columns)] for _ in range(rows)]


def grid(rng: random.Random, *, of: str, low: int = 2, high: int = 6) -> list[str]:
    """Rows of the same length, of random symbols."""
    columns = rng.randint(low, high)
    return ["".join(rng.choice(of) for _ in range(columns)) for _ in range(rng.randint(low, high))]
