"""Verdicts on a run: what was found, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding, with the numbers behind it, and what to change."""

    name: str
    kind: Literal["problem", "note", "good"]
    finding: str
    advice: str


problem = partial(Verdict, kind="problem")
note = partial(Verdict, kind="note")
good = partial(Verdict, kind="good")
