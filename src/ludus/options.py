"""How a field of a config is set on the command line and in TOML.

A config class is the one place that declares its options: name, type and default come from the
field, the help is the text under it, and an `Option` in its type says the rest:

    steps: Annotated[int, Option("Optimization")] = 150
    '''Number of training steps.'''
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Group = Literal[
    "Basics", "Agent", "Tasks", "Sampling", "Optimization", "LoRA", "Limits", "Selection", "Rows",
    "Output", "Server",
]  # fmt: skip
"""The panels of a help text, in their order."""

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Option:
    """The part of an option that name, type, default and text of its field do not say."""

    group: Group = "Basics"
    advanced: bool = False
    """Listed by --help-all only."""
    hidden: bool = False
    """Listed nowhere: a rare setting for `--set NAME=VALUE` and TOML, or another tool's name."""
    name: str = ""
    """Another name than the field's: `set` for `overrides`."""
    short: str = ""
    """A letter: `n` for -n."""
    aliases: tuple[str, ...] = ()
    """Flags that other tools have for it, listed nowhere; `--use-vllm=colocate` takes no value."""
    bare: str = ""
    """The value of the option if it is given without one."""
    metavar: str = ""
    default: str = ""
    """The default in words, if the value does not explain itself."""
    env_var: str = ""
    parse: Callable[[str], Any] | None = None
    """The value of a text. A ValueError says what is wrong with it."""
    combine: Callable[[Sequence[str]], Any] | None = None
    """The value of all texts that a repeatable option was given."""
    complete: Callable[[], Sequence[str]] | None = None
    """The known values, for the shell."""


def expand_path(text: str) -> Path:
    """The path, with ~ expanded: the shell leaves it alone in `--option=~/path`."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text}: there is no such user") from None


def parse_duration(text: str) -> float:
    """Parse a duration such as `90s`, `10m`, `2h`, `1d` or a plain number; returns seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is not a duration; write 90s, 10m or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_minutes(text: str) -> float:
    """Parse a duration such as `10` (minutes), `90s` or `2h`; returns minutes."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text.strip()) else parse_duration(text) / 60


def parse_timeout(text: str) -> float | None:
    """A duration; 0 is none."""
    return None if text.strip() == "0" else parse_duration(text)


def parse_mebibytes(text: str) -> int:
    """Parse a size in MiB, such as 0.5; returns bytes."""
    if not float(text) > 0:
        raise ValueError(f"{text} is not a positive size in MiB")
    return int(float(text) * 1024 * 1024)


def parse_range(text: str) -> tuple[float, float]:
    """Parse a range such as `0.1..0.9`; a missing bound is 0 or 1."""
    low, dots, high = text.partition("..")
    try:
        if not dots:
            raise ValueError
        return float(low or 0), float(high or 1)
    except ValueError:
        raise ValueError(f"{text!r} is not a range; write 0.1..0.9, ..0.5 or 0.5..") from None


def parse_assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Parse options `key=value` (the value is JSON or text) and JSON objects into one table."""
    table: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                value = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{text} is not valid JSON: {error}") from None
            if not isinstance(value, dict):
                raise ValueError(f"{text} is not a JSON object")
            table |= value
            continue
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{text!r} is not key=value or a JSON object")
        try:
            table[key.strip()] = json.loads(value)
        except ValueError:
            table[key.strip()] = value
    return table


def parse_settings(texts: Sequence[str]) -> dict[str, Any] | None:
    """Parse the settings of an option that is off by default: `r=16,alpha=32`; `on` has none.

    None for `off`. JSON objects and TOML tables are accepted, too.
    """
    parts = [part for text in texts for part in ([text] if text[:1] == "{" else text.split(","))]
    if parts in (["off"], ["false"]):
        return None
    return parse_assignments([part for part in parts if part not in ("on", "true")])
