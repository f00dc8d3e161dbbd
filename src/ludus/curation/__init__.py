"""Turn episodes into training data: filter, deduplicate, split, pair; import, export, lint."""

from ludus.curation.config import CurateConfig
from ludus.curation.pipeline import curate
from ludus.curation.report import CurateReport

__all__ = ["CurateConfig", "CurateReport", "curate"]
