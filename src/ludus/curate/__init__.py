"""Episodes -> rows worth training on: select, dedupe, split, pair; importers, exporters, lint."""

from ludus.curate.curating import curate
from ludus.curate.curation import Curation, Report
from ludus.curate.rows import Form
from ludus.curate.select import Selection
from ludus.data.stage_module import make_callable

__all__ = ["Curation", "Form", "Report", "Selection", "curate"]

make_callable(__name__)
