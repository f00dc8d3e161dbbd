"""The doctor: does an environment keep its promises?"""

from ludus.check.examine import examine
from ludus.check.report import Finding, Report

__all__ = ["Finding", "Report", "examine"]
