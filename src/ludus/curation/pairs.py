"""Preference pairs of attempts at one task, as a table of the catalog."""

from __future__ import annotations

from collections.abc import Iterator

from ludus.curation.catalog import Catalog
from ludus.curation.config import CurateConfig
from ludus.curation.filters import BEST_FIRST, DUPLICATE_PAIR
from ludus.errors import ConfigError

_SAME_PROMPT_COLUMNS = "task, prompt, tools"


_UNPAIRED_DETAIL = {
    "best": "neither the best nor the worst attempt",
    "all": "too close to every other attempt",
}


def build_pairs(catalog: Catalog, config: CurateConfig) -> None:
    """Create the table `pairs`, and exclude the episodes that are in no pair.

    Pairs are built among the attempts of all runs with equal task, prompt and tools. Episodes with
    faults are already excluded, so the rejected side is always the model's doing.
    """
    unscored = "reason IS NULL AND reward IS NULL"
    if catalog.sql(f"SELECT count(*) FROM episodes WHERE {unscored}")[0][0]:
        raise ConfigError("`keep_unscored` cannot be used with `to` dpo: a pair needs two rewards.")
    # Floating point makes 0.3 - 0.2 slightly less than 0.1.
    margin = max(0.0, config.min_margin - 1e-9)
    catalog.sql(
        f"""CREATE OR REPLACE TABLE attempts AS
        SELECT rowid AS row, reward,
            dense_rank() OVER (ORDER BY {_SAME_PROMPT_COLUMNS}) AS prompt_id,
            count(*) OVER same AS num_attempts,
            max(reward) OVER same - min(reward) OVER same AS spread,
            row_number() OVER (PARTITION BY {_SAME_PROMPT_COLUMNS} ORDER BY {BEST_FIRST})
                AS from_best,
            row_number() OVER (PARTITION BY {_SAME_PROMPT_COLUMNS} ORDER BY reward, turns, rowid)
                AS from_worst
        FROM episodes WHERE reason IS NULL
        WINDOW same AS (PARTITION BY {_SAME_PROMPT_COLUMNS})"""
    )
    catalog.sql(
        f"""CREATE OR REPLACE TABLE pairs AS
        SELECT a.row AS chosen, b.row AS rejected
        FROM attempts a JOIN attempts b USING (prompt_id)
        WHERE a.reward > b.reward AND a.reward - b.reward >= ?
            {"AND a.from_best = 1 AND b.from_worst = 1" if config.pairs == "best" else ""}""",
        margin,
    )
    for reason, condition, detail in (
        ("alone", "num_attempts = 1", "no other attempt at the task"),
        ("equal rewards", "spread = 0", "all attempts at the task have the same reward"),
        ("min-margin", f"spread < {margin!r}", f"less than {config.min_margin:g} apart"),
        ("in no pair", "true", _UNPAIRED_DETAIL[config.pairs]),
    ):
        catalog.exclude(
            reason,
            f"""rowid IN (SELECT row FROM attempts WHERE ({condition})
                EXCEPT SELECT chosen FROM pairs EXCEPT SELECT rejected FROM pairs)""",
            detail=detail,
        )


def exclude_duplicate_pairs(catalog: Catalog) -> None:
    """Keep the first of pairs with the same content, across all tasks."""
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
        detail="the same as another pair",
    )


def iter_pairs(catalog: Catalog) -> Iterator[tuple[int, int, str | None]]:
    """Yield the rows of the better and the worse attempt, and their split."""
    rows = catalog.stream(
        "SELECT chosen, rejected, split FROM pairs JOIN episodes ON chosen = episodes.rowid "
        "ORDER BY chosen, rejected"
    )
    return ((better, worse, split) for better, worse, split in rows)
