"""Which programs of the `codeio` data set have an answer that can be known.

The data set asks what a program returns, and runs it to find out. Some of its 3002 programs read
the clock, draw entropy or order objects by their address, so that no seed determines the answer;
some change what later questions depend on, such as the precision of decimals; some fail.
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
"""Programs, by the checksum of their code, that gave two processes two answers."""
_FAILS = (
    "f30a93b6 b1ae4a64 7761679a 259d6d63 493a7ad2 8072ed54 75db48f1 e16fd878 2f2ca9bc 19ff42e9 "
    "bca7f4c3 d6dac7bb 9aa383af"
)
"""Programs that raise under NumPy 2, or return what JSON cannot hold."""
_EXCLUDED = frozenset(int(checksum, 16) for checksum in f"{_VARIES} {_FAILS}".split())


def select_deterministic(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows whose program gives the same answer wherever it runs."""
    return [
        row
        for row in rows
        if not _NONDETERMINISTIC.search(row["code_sample"])
        and not _NONDETERMINISTIC.search(row["input_generator"])
        and zlib.crc32(row["code_sample"].encode()) not in _EXCLUDED
    ]
