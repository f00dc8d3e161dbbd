"""Turn episodes into training data: filter, deduplicate, split, pair; import, export, lint."""

from ludus.curation.config import CurateConfig
from ludus.curation.curation_report import CurateReport
from ludus.curation.pipeline import curate

__all__ = ["CurateConfig", "CurateReport", "curate"]
