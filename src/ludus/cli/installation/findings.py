"""What a check of the installation found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "missing", "warning", "broken"]
"""`missing`: optional and not installed. `broken`: required, or installed and unusable."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    subject: str
    status: Status
    detail: str
    advice: str = ""
    """What to do about it: a command, or one sentence."""
