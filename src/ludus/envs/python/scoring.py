"""Compares what a submitted function returned with what it should return."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ludus.envs.python.tasks import Case

PARTIAL_CREDIT = 0.5
"""Bound of the reward if some tests fail."""


def passes(test: Case, reply: Any) -> bool:
    """Whether a reply of the sandbox, which may be any JSON value, is what the test expects."""
    return isinstance(reply, dict) and "value" in reply and equals(test.expected, reply["value"])


def equals(expected: Any, actual: Any) -> bool:
    """Whether two JSON values are the same: 1, 1.0 and True are three different values."""
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, list):
        return len(expected) == len(actual) and all(map(equals, expected, actual))
    if isinstance(expected, dict):
        return expected.keys() == actual.keys() and all(
            equals(value, actual[key]) for key, value in expected.items()
        )
    if isinstance(expected, float):
        return math.isclose(expected, actual, rel_tol=1e-9, abs_tol=1e-9)
    return bool(expected == actual)


def compute_reward(tests: Sequence[Case], passed: int) -> float:
    """1.0 if all tests pass; else partial credit for those that no constant answer would pass."""
    if passed == len(tests):
        return 1.0
    ((_, constant_passes),) = Counter(repr(test.expected) for test in tests).most_common(1)
    return PARTIAL_CREDIT * max(0, passed - constant_passes) / (len(tests) - constant_passes)
