"""Checks of environments: determinism, rewards, session isolation, and what the model sees."""

from ludus.check.check_runner import CheckFinding, CheckReport, run_checks

__all__ = ["CheckFinding", "CheckReport", "run_checks"]
