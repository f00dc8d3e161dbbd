"""Disks without enough space, and how errors about them read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ludus.errors import RunError

Resize = Callable[[str], None]


def one_line(caught: pytest.ExceptionInfo[RunError]) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text
