"""Reports: one file about runs, data sets, trained models and evaluations, to send to others."""

from ludus.reporting.pipeline import ReportFormat, report

__all__ = ["ReportFormat", "report"]
