"""Checks of environments: determinism, rewards, session isolation, and what the model sees."""

from ludus.check.check_runner import run_checks
from ludus.check.findings import CheckFinding, CheckReport

__all__ = ["CheckFinding", "CheckReport", "run_checks"]
