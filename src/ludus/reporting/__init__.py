"""Reports: one page about runs, data sets, trained models and evaluations, to send to others."""

from ludus.reporting.pipeline import report

__all__ = ["report"]
