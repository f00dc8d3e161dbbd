"""What became of a GRPO run, and what to change: from its log and its episodes."""

from __future__ import annotations

from ludus.train.diagnosis.change import Change, Interval, Scale
from ludus.train.diagnosis.diagnosis import Diagnosis, diagnose
from ludus.train.diagnosis.folder import Run, read_run
from ludus.train.diagnosis.played import Played, read_played
from ludus.train.diagnosis.saturation import Saturation
from ludus.train.diagnosis.verdict import Verdict
from ludus.train.diagnosis.words import words

__all__ = [
    "Change",
    "Diagnosis",
    "Interval",
    "Played",
    "Run",
    "Saturation",
    "Scale",
    "Verdict",
    "diagnose",
    "read_played",
    "read_run",
    "words",
]
