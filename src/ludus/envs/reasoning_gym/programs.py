"""Select the programs of the `codeio` data set whose answer is deterministic.

The data set asks what a program returns, and runs it to find out. Some of its 3002 programs read
the clock, draw entropy or order objects by address, so that the seed does not determine the answer;
some change global state that later questions depend on, such as the decimal precision; some raise.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from typing import Any

_NONDETERMINISTIC = re.compile(
    r"\b(?:now|today|input|id|open|exit|Thread|Pool|Process|getcontext|setcontext|seterr)\("
    r"|\b(?:seed|Random|default_rng|RandomState)\(\)"
    r"|\b(?:time|os|signal|socket|subprocess|tempfile)\.\w"
    r"|\b(?:environ|scipy|secrets|urandom|uuid)\b"
)
_VARIES = "ebfc3604 5b5601b1 84a60fa1 85c37396 1e6df2a6"
"""CRC-32 of the code of programs that gave different answers in different processes."""
_FAILS = (
    "f30a93b6 b1ae4a64 7761679a 259d6d63 493a7ad2 8072ed54 75db48f1 e16fd878 2f2ca9bc 19ff42e9 "
    "bca7f4c3 d6dac7bb 9aa383af"
)
"""CRC-32 of programs that raise with NumPy 2, or return a value without JSON representation."""
_EXCLUDED = frozenset(int(checksum, 16) for checksum in f"{_VARIES} {_FAILS}".split())


def select_deterministic(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows whose program gives the same answer in every process."""
    return [
        row
        for row in rows
        if not _NONDETERMINISTIC.search(row["code_sample"])
        and not _NONDETERMINISTIC.search(row["input_generator"])
        and zlib.crc32(row["code_sample"].encode()) not in _EXCLUDED
    ]
