"""Episodes -> rows worth training on: select, dedupe, split, pair; importers, exporters, lint."""

from ludus.curation.config import CurateConfig, CurateReport
from ludus.curation.filters import FilterConfig
from ludus.curation.pipeline import curate
from ludus.curation.training_rows import RowConfig
from ludus.data.stage_module import make_callable

__all__ = ["CurateConfig", "CurateReport", "FilterConfig", "RowConfig", "curate"]

make_callable(__name__)
