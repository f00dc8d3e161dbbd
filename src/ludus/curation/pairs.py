"""Preference pairs: two attempts at one task, one clearly better than the other.

Chosen in the catalog, so among all attempts in all runs at once. What broke is not there any more,
so the rejected side is always what a model did. Attempts are at the same task only if they were
asked the same way: task, prompt and tools are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Literal

from ludus.curation.catalog import Catalog
from ludus.curation.filters import BEST_FIRST, DUPLICATE_PAIR
from ludus.errors import ConfigError

Pairing = Literal["best", "all"]
DEFAULT_MIN_MARGIN = 0.1
_SAME_PROMPT_COLUMNS = "task, prompt, tools"
_UNPAIRED_DETAIL = {
    "best": "neither the best nor the worst",
    "all": "too close to every other attempt",
}
_WORST_FIRST = "reward, turns, rowid"


def build_pairs(
    catalog: Catalog, *, pairing: Pairing = "best", min_margin: float = DEFAULT_MIN_MARGIN
) -> None:
    """Make the table `pairs`, and leave out the episodes that are in none of them."""
    if not 0 <= min_margin < inf:
        raise ConfigError(f"--min-margin {min_margin} cannot be: it is a number, 0 or more.")
    _check_scored(catalog)
    # What floats make of 0.3 - 0.2 is still 0.1 to whoever typed it.
    least = max(0.0, min_margin - 1e-9)
    catalog.sql(
        f"""CREATE OR REPLACE TABLE attempts AS
        SELECT rowid AS row, reward, dense_rank() OVER (ORDER BY {_SAME_PROMPT_COLUMNS}) AS asked,
            count(*) OVER same AS others, max(reward) OVER same - min(reward) OVER same AS spread,
            row_number() OVER (PARTITION BY {_SAME_PROMPT_COLUMNS} ORDER BY {BEST_FIRST}) AS from_best,
            row_number() OVER (PARTITION BY {_SAME_PROMPT_COLUMNS} ORDER BY {_WORST_FIRST}) AS from_worst
        FROM episodes WHERE reason IS NULL WINDOW same AS (PARTITION BY {_SAME_PROMPT_COLUMNS})"""
    )
    catalog.sql(
        f"""CREATE OR REPLACE TABLE pairs AS
        SELECT a.row AS chosen, b.row AS rejected
        FROM attempts a JOIN attempts b USING (asked)
        WHERE a.reward > b.reward AND a.reward - b.reward >= ?
            {"AND a.from_best = 1 AND b.from_worst = 1" if pairing == "best" else ""}""",
        least,
    )
    for reason, condition, detail in (
        ("alone", "others = 1", "no other attempt at the task"),
        ("equal rewards", "spread = 0", "all attempts at the task have the same reward"),
        ("min-margin", f"spread < {least!r}", f"less than {min_margin:g} apart"),
        ("in no pair", "true", _UNPAIRED_DETAIL[pairing]),
    ):
        catalog.exclude(
            reason,
            f"""rowid IN (SELECT row FROM attempts WHERE ({condition})
                EXCEPT SELECT chosen FROM pairs EXCEPT SELECT rejected FROM pairs)""",
            detail=detail,
        )


def exclude_duplicate_pairs(catalog: Catalog) -> None:
    """Of pairs that say the same, word for word, at whichever tasks, the first stays."""
    catalog.sql(
        """CREATE OR REPLACE TABLE pairs AS
        SELECT chosen, rejected FROM pairs
            JOIN episodes a ON chosen = a.rowid JOIN episodes b ON rejected = b.rowid
        QUALIFY row_number() OVER (
            PARTITION BY a.prompt, a.tools, a.completion, b.completion ORDER BY chosen, rejected
        ) = 1"""
    )
    catalog.exclude(
        DUPLICATE_PAIR,
        "rowid NOT IN (SELECT unnest([chosen, rejected]) FROM pairs)",
        detail="both sides say the same as those of another pair",
    )


def iter_pairs(catalog: Catalog) -> Iterator[tuple[int, int, str | None]]:
    """The rows of the better and the worse one and their side, in the order of the better ones."""
    found = catalog.stream(
        "SELECT chosen, rejected, side FROM pairs JOIN episodes ON chosen = episodes.rowid "
        "ORDER BY chosen, rejected"
    )
    return ((better, worse, side) for better, worse, side in found)


def _check_scored(catalog: Catalog) -> None:
    if catalog.sql("SELECT count(*) FROM episodes WHERE reason IS NULL AND reward IS NULL")[0][0]:
        raise ConfigError(
            "--unscored is not for pairs: without a reward nothing is the better one."
        )
