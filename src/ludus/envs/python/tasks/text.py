"""Tasks on text."""

from __future__ import annotations

from ludus.envs.python.tasks.draws import letters, sentence, word, words
from ludus.envs.python.tasks.task import task


@task(
    lambda rng: (
        rng.choice(["Noon", "Kayak", "Rotor, rotor!", "Was it a car", "No lemon, no melon"])
        if rng.random() < 0.3
        else (half := letters(rng, 1, 5, of="abcXY1")) + rng.choice(["", " "]) + half[::-1]
        if rng.random() < 0.4
        else letters(rng, 2, 7, of="abAB ,"),
    ),
    [("",), ("?!",), ("A man, a plan, a canal: Panama",), ("10 01",), ("ab",)],
)
def is_palindrome(text: str) -> bool:
    """Tell whether the text reads the same forwards and backwards.

    Only letters and digits count, and upper and lower case are the same.
    A text without any letter or digit is a palindrome.
    """
    kept = [symbol.lower() for symbol in text if symbol.isalnum()]
    return kept == kept[::-1]


@task(lambda rng: (sentence(rng),), [("",), ("rhythm",), ("AEIOU aeiou",)])
def count_vowels(text: str) -> int:
    """Count the vowels in the text: a, e, i, o and u, in either case."""
    return sum(symbol in "aeiou" for symbol in text.lower())


@task(
    lambda rng: (sentence(rng).replace(" ", rng.choice([" ", "  "])),),
    [("",), ("   ",), (" one ",)],
)
def reverse_words(text: str) -> str:
    """Reverse the order of the words, and put one blank between each two of them.

    Words are separated by one or more blanks. There may be blanks around the text, too.
    """
    return " ".join(reversed(text.split()))


@task(
    lambda rng: (sentence(rng) + rng.choice(["", "!", " 42"]), rng.randint(-30, 30)),
    [("", 3), ("xyz XYZ", 3), ("abc", -1), ("Hello, World!", 26)],
)
def caesar_shift(text: str, shift: int) -> str:
    """Replace every letter by the one that comes `shift` places later in the alphabet.

    After z comes a again. The case of a letter stays, and other symbols stay as they are.
    `shift` may be negative, and larger than 26.
    """
    shifted = []
    for symbol in text:
        if symbol.isascii() and symbol.isalpha():
            first = ord("a") if symbol.islower() else ord("A")
            symbol = chr(first + (ord(symbol) - first + shift) % 26)
        shifted.append(symbol)
    return "".join(shifted)


@task(
    lambda rng: (
        "".join(letters(rng, 1, 1) * rng.randint(1, 12) for _ in range(rng.randint(1, 5))),
    ),
    [("",), ("a",), ("aaaaaaaaaaaa",), ("aabaa",)],
)
def run_length_encode(text: str) -> str:
    """Write every run of the same letter as the letter and the length of the run.

    For example, "aaab" becomes "a3b1". The text has only lower-case letters.
    """
    from itertools import groupby

    return "".join(f"{letter}{len(list(run))}" for letter, run in groupby(text))


@task(
    lambda rng: (
        "".join(f"{letters(rng, 1, 1)}{rng.randint(1, 13)}" for _ in range(rng.randint(1, 5))),
    ),
    [("",), ("z10",), ("a1a1",)],
)
def run_length_decode(code: str) -> str:
    """Write out a text in which every letter is followed by how often to write it.

    For example, "a3b12" becomes "aaabbbbbbbbbbbb".
    """
    import re

    return "".join(letter * int(count) for letter, count in re.findall(r"([a-z])(\d+)", code))


@task(
    lambda rng: (
        first := word(rng),
        "".join(rng.sample(first, len(first))).title() if rng.random() < 0.5 else word(rng),
    ),
    [("", ""), ("Listen", "Silent"), ("aab", "abb"), ("a gem", "game"), ("abc", "abcc")],
)
def are_anagrams(first: str, second: str) -> bool:
    """Tell whether two texts have the same letters, each of them equally often.

    Upper and lower case are the same, and blanks do not count.
    """
    return sorted(first.lower().replace(" ", "")) == sorted(second.lower().replace(" ", ""))


@task(
    lambda rng: (rng.choice([" ", "-", " - "]).join(words(rng, 2, 6)),),
    [("",), ("portable network graphics",), ("first-in first-out",)],
)
def acronym(phrase: str) -> str:
    """Make an acronym: the first letter of every word, in upper case.

    Words are separated by blanks, hyphens, or both.
    """
    return "".join(word[0].upper() for word in phrase.replace("-", " ").split())


@task(
    lambda rng: (
        "".join(
            each if i == 0 and rng.random() < 0.7 else each.capitalize()
            for i, each in enumerate(words(rng, 1, 4))
        ),
    ),
    [("",), ("x",), ("X",), ("getX",), ("parseHTTP",)],
)
def camel_to_snake(name: str) -> str:
    """Turn a name in camel case, such as "maxTurnCount", into snake case: "max_turn_count".

    Every upper-case letter becomes a lower-case one, with an underscore before it unless it is the
    first letter of the name.
    """
    pieces = [f"_{letter.lower()}" if letter.isupper() else letter for letter in name]
    return "".join(pieces).removeprefix("_")


@task(
    lambda rng: (
        [
            (start := letters(rng, 1, 4, of="abc")) + letters(rng, 0, 4, of="abc"),
            *(start + letters(rng, 0, 4, of="abc") for _ in range(rng.randint(1, 3))),
        ],
    ),
    [([],), (["alone"],), (["", "a"],), (["flow", "flower", "flow"],), (["dog", "cat"],)],
)
def longest_common_prefix(words: list[str]) -> str:
    """Find the longest text that all words begin with; the empty text if there are no words."""
    if not words:
        return ""
    first, last = min(words), max(words)
    length = 0
    while length < len(first) and first[length] == last[length]:
        length += 1
    return first[:length]


@task(
    lambda rng: (sentence(rng, 5, 12), rng.randint(8, 20)),
    [("", 5), ("a bb ccc", 3), ("incomprehensible word", 6), ("one two", 7)],
)
def wrap_text(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` characters, with as many words on each as fit.

    Words are separated by blanks, in a line by exactly one. A word that is longer than `width` has
    a line of its own. The empty text has no lines.
    """
    lines: list[str] = []
    for piece in text.split():
        if lines and len(lines[-1]) + 1 + len(piece) <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return lines
