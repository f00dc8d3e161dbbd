"""Checks of environments: determinism, rewards, session isolation, and what the model sees."""

from ludus.check.findings import CheckFinding, CheckReport
from ludus.check.runner import run_checks

__all__ = ["CheckFinding", "CheckReport", "run_checks"]
