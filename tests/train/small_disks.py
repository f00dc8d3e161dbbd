"""Disks without enough space: claimed, and how errors about them read."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from ludus.errors import RunError

Resize = Callable[[str], None]


def claim_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Let any disk have so many free bytes."""
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)


def one_line(caught: pytest.ExceptionInfo[RunError]) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text
