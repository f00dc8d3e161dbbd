"""The doctor: does an environment keep its promises?"""

from ludus.check.examine import run_checks
from ludus.check.report import CheckFinding, CheckReport

__all__ = ["CheckFinding", "CheckReport", "run_checks"]
