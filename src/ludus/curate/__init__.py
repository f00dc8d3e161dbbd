"""Episodes -> rows worth training on: select, dedupe, split, pair; importers, exporters, lint."""

from ludus.curate.curating import curate
from ludus.curate.curation import CurateConfig, CurateReport
from ludus.curate.rows import RowConfig
from ludus.curate.select import FilterConfig
from ludus.data.stage_module import make_callable

__all__ = ["CurateConfig", "CurateReport", "FilterConfig", "RowConfig", "curate"]

make_callable(__name__)
