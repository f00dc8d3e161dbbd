"""Tasks on texts with a grammar, and tasks whose naive solution is too slow or not optimal."""

from __future__ import annotations

import random

from ludus.envs.python.tasks.task import integers, letters, task, word


def _draw_brackets(rng: random.Random) -> str:
    """A balanced text, in which a symbol may then be removed or exchanged."""
    text = ""
    for _ in range(rng.randint(1, 4)):
        pair = rng.choice(["()", "[]", "{}"])
        cut = rng.randint(0, len(text))
        text = rng.choice([pair[0] + text + pair[1], text + pair, pair[0] + text[cut:] + pair[1]])
    if rng.random() < 0.5:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(["", ")", "["]) + text[place + 1 :]
    return text


@task(
    lambda rng: (_draw_brackets(rng),),
    [("",), ("(a + [b])",), ("([)]",), ("((",), (")(",), ("{x: [1, (2)]}",)],
)
def balanced_brackets(text: str) -> bool:
    """Tell whether every bracket is closed by one of its own kind, in the right order.

    The brackets are (), [] and {}; all other symbols are ignored.
    """
    closing = {"(": ")", "[": "]", "{": "}"}
    expected: list[str] = []
    for symbol in text:
        if symbol in closing:
            expected.append(closing[symbol])
        elif symbol in ")]}" and (not expected or expected.pop() != symbol):
            return False
    return not expected


def _draw_postfix(rng: random.Random, depth: int) -> list[str]:
    if depth == 0 or rng.random() < 0.2:
        return [str(rng.randint(-9, 12))]
    left, right = _draw_postfix(rng, depth - 1), _draw_postfix(rng, depth - 1)
    return [*left, *right, rng.choice("+-*")]


@task(
    lambda rng: (_draw_postfix(rng, rng.randint(1, 3)),),
    [(["7"],), (["2", "3", "-"],), (["-4", "5", "*"],), (["1", "2", "3", "-", "-"],)],
)
def evaluate_postfix(tokens: list[str]) -> int:
    """Evaluate an expression in postfix notation, where an operator stands after its operands.

    Tokens are integers and the operators +, - and *. ["5", "2", "-"] means 5 - 2.
    """
    stack: list[int] = []
    for token in tokens:
        if token in ("+", "-", "*"):
            right, left = stack.pop(), stack.pop()
            stack.append({"+": left + right, "-": left - right, "*": left * right}[token])
        else:
            stack.append(int(token))
    return stack[0]


def _draw_expression(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.15:
        return str(rng.randint(0, 20))
    operator = rng.choice(["+", " + ", "-", " - ", "*", " * "])
    text = _draw_expression(rng, depth - 1) + operator + _draw_expression(rng, depth - 1)
    return f"({text})" if rng.random() < 0.4 else text


@task(
    lambda rng: (_draw_expression(rng, rng.randint(1, 3)),),
    [("7",), ("2 + 3 * 4",), ("(2 + 3) * 4",), ("10 - 4 - 3",), ("((5))",), ("2*(3-(4-5))",)],
)
def evaluate_expression(text: str) -> int:
    """Evaluate an expression with integers, +, -, * and brackets.

    * binds more strongly than + and -, and operators of the same strength are applied from left to
    right. There may be blanks anywhere between numbers, operators and brackets.
    """
    import re

    tokens = re.findall(r"\d+|[-+*()]", text)

    def parse_factor() -> int:
        token = tokens.pop(0)
        if token != "(":
            return int(token)
        value = parse_sum()
        tokens.pop(0)
        return value

    def parse_product() -> int:
        value = parse_factor()
        while tokens and tokens[0] == "*":
            tokens.pop(0)
            value *= parse_factor()
        return value

    def parse_sum() -> int:
        value = parse_product()
        while tokens and tokens[0] in ("+", "-"):
            value += parse_product() if tokens.pop(0) == "+" else -parse_product()
        return value

    return parse_sum()


@task(
    lambda rng: (
        "&".join(
            letters(rng, 1, 2, of="abc") + rng.choice(["", "=", "=1", f"={word(rng)}"])
            for _ in range(rng.randint(1, 5))
        ),
    ),
    [("",), ("a=1&a=2",), ("a&b=",), ("a=b=c",), ("&&x=1&",)],
)
def parse_query(query: str) -> dict[str, str]:
    """Read the parameters of a URL, such as "page=2&sort=name", into a dictionary.

    Of several parameters with the same name the last one counts. One without "=" has the empty
    text as its value; only the first "=" separates. Empty parts between "&" are ignored.
    """
    parameters = {}
    for part in query.split("&"):
        if part:
            name, _, value = part.partition("=")
            parameters[name] = value
    return parameters


@task(
    lambda rng: (
        version := ".".join(str(rng.randint(0, 12)) for _ in range(rng.randint(1, 4))),
        rng.choice([version + ".0", version + ".1", f"{rng.randint(0, 12)}.{rng.randint(0, 12)}"]),
    ),
    [("1.10", "1.9"), ("1.0", "1"), ("2", "10"), ("1.2.3", "1.2.4"), ("0.0.1", "0")],
)
def compare_versions(first: str, second: str) -> int:
    """Compare two versions such as "1.10.2": -1 if the first is older, 1 if it is newer, else 0.

    The numbers are compared from left to right. A number that is missing counts as 0.
    """
    one, two = ([int(number) for number in version.split(".")] for version in (first, second))
    length = max(len(one), len(two))
    one += [0] * (length - len(one))
    two += [0] * (length - len(two))
    return (one > two) - (one < two)


@task(
    lambda rng: (
        rng.choice([rng.randint(1, 59), rng.randint(60, 3599), rng.randint(3600, 99_999)]),
    ),
    [(0,), (59,), (60,), (3600,), (3661,), (7202,)],
)
def format_duration(seconds: int) -> str:
    """Write a duration in hours, minutes and seconds, such as "1h 2m 5s".

    Parts that are 0 are left out: 3605 is "1h 5s". A duration of 0 is "0s".
    """
    hours, rest = divmod(seconds, 3600)
    parts = [(hours, "h"), (rest // 60, "m"), (rest % 60, "s")]
    return " ".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


@task(
    lambda rng: tuple(f"{rng.randrange(24):02}:{rng.randrange(60):02}" for _ in range(2)),
    [("00:00", "00:00"), ("23:59", "00:01"), ("08:30", "09:00"), ("12:00", "11:59")],
)
def minutes_between(start: str, end: str) -> int:
    """Count the minutes from one time of day to another, both in the form "HH:MM".

    If the end is earlier in the day than the start, it is on the next day.
    """
    start_hour, start_minute = map(int, start.split(":"))
    end_hour, end_minute = map(int, end.split(":"))
    return (60 * (end_hour - start_hour) + end_minute - start_minute) % (24 * 60)


@task(
    lambda rng: (letters(rng, 3, 12, of="FFLR"),),
    [("",), ("F",), ("RRRR",), ("FFRFFRFFRFF",), ("LF",)],
)
def robot_position(commands: str) -> list[int]:
    """Return where a robot stands, as [x, y], after it has followed its commands.

    It begins at [0, 0] and looks north. "F" moves it forward by 1, "L" and "R" turn it left and
    right by 90 degrees. North is up (y grows), and east is to the right (x grows).
    """
    x, y, east, north = 0, 0, 0, 1
    for command in commands:
        if command == "F":
            x, y = x + east, y + north
        elif command == "L":
            east, north = -north, east
        else:
            east, north = north, -east
    return [x, y]


@task(
    lambda rng: (letters(rng, 2, 12, of="0123456789"),),
    [("0",), ("7992739871",), ("49927398716",), ("5",), ("6",)],
)
def check_digit(digits: str) -> int:
    """Return the digit that has to follow these digits to make them a valid number by Luhn's rule.

    From right to left, beginning with the last of the given digits, every second digit is doubled,
    the last one first; of a result above 9, 9 is subtracted. The sum of all these, together with
    the new digit, must be a multiple of 10.
    """
    total = 0
    for place, digit in enumerate(reversed(digits)):
        doubled = int(digit) * 2
        total += int(digit) if place % 2 else doubled - 9 * (doubled > 9)
    return -total % 10


@task(
    lambda rng: (integers(rng, 2, 10, low=-9, high=9),),
    [([5],), ([-3, -1, -2],), ([1, -2, 3, 4, -1],), ([2, 2, -10, 3],)],
)
def max_subarray_sum(numbers: list[int]) -> int:
    """Return the largest sum that neighbours in the list can have.

    At least one number has to be taken, and the list is not empty.
    """
    best = current = numbers[0]
    for number in numbers[1:]:
        current = max(number, current + number)
        best = max(best, current)
    return best


@task(
    lambda rng: (letters(rng, 2, 7, of="abcd"), letters(rng, 2, 7, of="abcd")),
    [("", ""), ("", "abc"), ("kitten", "sitting"), ("same", "same"), ("intention", "execution")],
)
def edit_distance(first: str, second: str) -> int:
    """Count the fewest changes that turn the first text into the second.

    A change inserts, removes or replaces one letter.
    """
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, start=1):
        previous, row = row, [i]
        for j, other in enumerate(second, start=1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (letter != other)))
    return row[-1]


@task(
    lambda rng: (letters(rng, 3, 9, of="abcd"), letters(rng, 3, 9, of="abcd")),
    [("", "a"), ("abc", "abc"), ("abc", "def"), ("aggtab", "gxtxayb"), ("ab" * 20, "ba" * 20)],
)
def common_subsequence_length(first: str, second: str) -> int:
    """Return the length of the longest text that can be made from either text by removing letters.

    The texts may have several dozen letters.
    """
    row = [0] * (len(second) + 1)
    for letter in first:
        previous, row = row, [0]
        for j, other in enumerate(second):
            row.append(previous[j] + 1 if letter == other else max(previous[j + 1], row[-1]))
    return row[-1]


@task(
    lambda rng: (rng.randint(1, 60), sorted(rng.sample(range(1, 16), rng.randint(1, 4)))),
    [(0, [5]), (3, [2]), (6, [1, 3, 4]), (11, [1, 2, 5]), (999, [7, 11, 50]), (4, [])],
)
def fewest_coins(amount: int, coins: list[int]) -> int:
    """Return the fewest coins that make up an amount; there are enough coins of every kind.

    Return -1 if the amount cannot be made. An amount of 0 needs no coins.
    """
    fewest = [0]
    for total in range(1, amount + 1):
        options = [fewest[total - coin] for coin in coins if coin <= total]
        possible = [count for count in options if count >= 0]
        fewest.append(min(possible) + 1 if possible else -1)
    return fewest[amount]


@task(
    lambda rng: (integers(rng, 3, 12, low=0, high=20),),
    [
        ([],),
        ([4],),
        ([3, 2, 1],),
        ([1, 1, 1],),
        ([10, 9, 2, 5, 3, 7, 101, 18],),
        (list(range(40)),),
    ],
)
def increasing_subsequence_length(numbers: list[int]) -> int:
    """Return how many numbers can be kept, at most, if the kept ones must grow from left to right.

    Every kept number must be larger than the kept one before it. The numbers need not be
    neighbours. The list may have several dozen numbers.
    """
    from bisect import bisect_left

    smallest_last: list[int] = []
    for number in numbers:
        place = bisect_left(smallest_last, number)
        smallest_last[place : place + 1] = [number]
    return len(smallest_last)


@task(lambda rng: (rng.randint(3, 60),), [(0,), (1,), (2,), (3,), (100,)])
def climb_stairs(steps: int) -> int:
    """Count the ways to climb stairs with this many steps, taking 1, 2 or 3 steps at a time.

    There is one way to climb none. There may be a hundred steps.
    """
    ways = [1, 1, 2]
    while len(ways) <= steps:
        ways.append(sum(ways[-3:]))
    return ways[steps]


@task(
    lambda rng: (
        [[weight, 3 * weight + rng.randint(0, 9)] for weight in integers(rng, 2, 6, low=1, high=8)],
        rng.randint(3, 20),
    ),
    [([], 10), ([[5, 10]], 4), ([[5, 10]], 5), ([[3, 5], [3, 5], [4, 8]], 6)],
)
def knapsack(items: list[list[int]], capacity: int) -> int:
    """Return the largest value that can be carried.

    Each item is [weight, value] and may be taken once. Together the items may weigh `capacity` at
    most.
    """
    best = [0] * (capacity + 1)
    for weight, value in items:
        for room in range(capacity, weight - 1, -1):
            best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]


@task(
    lambda rng: (
        (text := "".join(word(rng) for _ in range(rng.randint(1, 2))))
        + text[::-1][: rng.randint(0, 4)],
    ),
    [("",), ("a",), ("ab",), ("babad",), ("forgeeksskeegfor",)],
)
def longest_palindrome(text: str) -> str:
    """Find the longest part of the text that reads the same forwards and backwards.

    If there are several, return the one that begins first.
    """
    for length in range(len(text), 0, -1):
        for start in range(len(text) - length + 1):
            part = text[start : start + length]
            if part == part[::-1]:
                return part
    return ""
