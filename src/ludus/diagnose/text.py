"""A diagnosis as lines of text."""

from __future__ import annotations

from ludus.diagnose.diagnosis import Diagnosis
from ludus.diagnose.reward_delta import format_change_with_interval
from ludus.diagnose.verdict import Verdict


def format_diagnosis(diagnosis: Diagnosis) -> list[str]:
    """Return a line for the reward change and for each component, then one for each verdict."""
    changes = [diagnosis.reward, *diagnosis.parts] if diagnosis.reward else []
    return [
        *(f"{change.name}: {format_change_with_interval(change)}" for change in changes),
        *map(format_verdict, diagnosis.verdicts),
    ]


def format_verdict(verdict: Verdict) -> str:
    """Return name, finding and advice as two sentences."""
    advice = verdict.advice[:1].upper() + verdict.advice[1:]
    return f"{verdict.name}: {verdict.finding}. {advice}."
