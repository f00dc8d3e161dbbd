"""Tasks on texts with a grammar: brackets, expressions, versions and times."""

from __future__ import annotations

import random

from ludus.envs.python.tasks.draws import letters, word
from ludus.envs.python.tasks.task import task


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
