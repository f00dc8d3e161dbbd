"""A diagnosis in words: what the end of a training prints, and the program below its table."""

from __future__ import annotations

from ludus.diagnose.diagnosis import Diagnosis
from ludus.diagnose.number_format import format_change_with_interval
from ludus.diagnose.verdict import Verdict


def format_diagnosis(diagnosis: Diagnosis) -> list[str]:
    """The change of the reward, and of its parts; then the verdicts, a line each."""
    changes = [diagnosis.reward, *diagnosis.parts] if diagnosis.reward else []
    lines = [
        f"{change.name}: {format_change_with_interval(change)}"
        for change in changes
        if change is not None
    ]
    return [*lines, *map(format_verdict, diagnosis.verdicts)]


def format_verdict(verdict: Verdict) -> str:
    """What is so; and what to do about it."""
    advice = verdict.advice[:1].upper() + verdict.advice[1:]
    return f"{verdict.name}: {verdict.finding}. {advice}."
