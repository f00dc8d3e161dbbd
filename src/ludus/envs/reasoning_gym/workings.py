"""How the answers of some data sets are found, in small steps that end with the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

Metadata = Mapping[str, Any]

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
