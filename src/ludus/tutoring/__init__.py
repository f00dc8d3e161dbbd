"""Rounds of playing, labelling and training (DAgger): `ludus.tutor`.

It joins the stages `collect`, `curate` and `sft`, and so lies above the packages of all three.
"""

from ludus.tutoring.config import TutorConfig
from ludus.tutoring.rounds import RoundMetrics, TutorResult

__all__ = ["RoundMetrics", "TutorConfig", "TutorResult"]
