"""Tasks on text, and on integers."""

from __future__ import annotations

from ludus.envs.python.tasks.task import integers, letters, sentence, task, word, words


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


@task(
    lambda rng: (rng.choice([rng.randint(2, 200), rng.choice([89, 97, 101, 7919, 104_729])]),),
    [(-7,), (0,), (1,), (2,), (49,), (7917,), (1_000_003,)],
)
def is_prime(number: int) -> bool:
    """Tell whether a number is prime. Numbers below 2 are not."""
    if number < 2:
        return False
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return True


@task(lambda rng: (rng.randint(2, 5000),), [(1,), (2,), (1024,), (999_983,), (360_360,)])
def prime_factors(number: int) -> list[int]:
    """List the prime factors of a positive number, from small to large.

    A factor is listed as often as it divides the number: 12 has [2, 2, 3]. The number 1 has none.
    """
    factors = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return [*factors, number] if number > 1 else factors


@task(lambda rng: (rng.randint(-99_999, 99_999),), [(0,), (-305,), (10**20 - 1,)])
def digit_sum(number: int) -> int:
    """Add up the decimal digits of a number; its sign does not matter."""
    return sum(int(digit) for digit in str(abs(number)))


@task(
    lambda rng: (rng.randint(0, 5000), rng.randint(2, 16)),
    [(0, 2), (255, 16), (-10, 2), (7, 7)],
)
def to_base(number: int, base: int) -> str:
    """Write an integer in a base from 2 to 16, with the digits 0 to 9 and a to f.

    A negative number has a minus sign before it.
    """
    if number < 0:
        return "-" + to_base(-number, base)
    digits = "0123456789abcdef"[number % base]
    return to_base(number // base, base) + digits if number >= base else digits


@task(lambda rng: (rng.randint(1, 3999),), [(1,), (4,), (944,), (3999,), (2026,)])
def roman_numeral(number: int) -> str:
    """Write a number from 1 to 3999 as a Roman numeral, such as "MCMXCIV" for 1994."""
    values = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1]
    symbols = ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"]
    numeral = ""
    for value, symbol in zip(values, symbols, strict=True):
        numeral += symbol * (number // value)
        number %= value
    return numeral


@task(
    lambda rng: (roman_numeral(rng.randint(1, 3999)),),
    [("I",), ("IX",), ("XLII",), ("MMMCMXCIX",), ("MDCLXVI",)],
)
def parse_roman(numeral: str) -> int:
    """Read a Roman numeral: the number that "MCMXCIV" and the like stand for.

    A symbol before a larger one is subtracted: IV is 4. The numeral is always well-formed.
    """
    values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    total = 0
    highest = 0
    for symbol in reversed(numeral):
        value = values[symbol]
        total += value if value >= highest else -value
        highest = max(highest, value)
    return total


@task(lambda rng: (rng.randint(2, 90),), [(0,), (1,), (2,), (300,)])
def fibonacci(index: int) -> int:
    """Return the Fibonacci number of an index.

    Those with index 0 and 1 are 0 and 1; every later one is the sum of the two before it.
    The index may be several hundred.
    """
    current, following = 0, 1
    for _ in range(index):
        current, following = following, current + following
    return current


@task(lambda rng: (rng.randint(2, 3000),), [(1,), (2,), (27,), (97_151,)])
def collatz_steps(number: int) -> int:
    """Count the steps from a positive number to 1.

    In each step, an even number is halved, and an odd one is replaced by three times itself plus 1.
    """
    steps = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


@task(
    lambda rng: (
        rng.choice([rng.randint(1, 3000), 4 * rng.randint(1, 750), 100 * rng.randint(1, 30)]),
    ),
    [(1900,), (2000,), (2024,), (2100,), (1,)],
)
def is_leap_year(year: int) -> bool:
    """Tell whether a year has 366 days in the Gregorian calendar.

    These are the years that 4 divides, except for those that 100 divides and 400 does not.
    """
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


@task(
    lambda rng: (rng.randint(0, 2**20), rng.randint(0, 2**20)),
    [(0, 0), (0, 2**64 - 1), (5, 5), (1, 4)],
)
def hamming_distance(first: int, second: int) -> int:
    """Count the places in which the binary digits of two numbers differ. Neither is negative."""
    return (first ^ second).bit_count()


@task(
    lambda rng: ([rng.choice([12, 18, 30]) * n for n in integers(rng, 1, 4, low=1, high=9)],),
    [([],), ([0, 0],), ([7],), ([0, 12],), ([-8, 12],)],
)
def greatest_common_divisor(numbers: list[int]) -> int:
    """Return the largest positive number that divides all the numbers.

    It is 0 if there are no numbers, or if all of them are 0. Signs do not matter.
    """
    divisor = 0
    for number in numbers:
        while number:
            divisor, number = number, divisor % number
    return abs(divisor)
