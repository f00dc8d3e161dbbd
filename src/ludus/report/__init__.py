"""Reports: one file about runs, data sets, trained models and evaluations, to send to others."""

from ludus.report.pipeline import ReportFormat, report

__all__ = ["ReportFormat", "report"]
