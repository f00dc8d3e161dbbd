"""Tasks on integers."""

from __future__ import annotations

from ludus.envs.python.tasks.draws import integers
from ludus.envs.python.tasks.task import task


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
