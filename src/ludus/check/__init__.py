"""The doctor: does an environment keep its promises?"""

from ludus.check.checks import run_checks
from ludus.check.findings import CheckFinding, CheckReport

__all__ = ["CheckFinding", "CheckReport", "run_checks"]
