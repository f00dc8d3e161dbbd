"""Filters, exact duplicates, and preference pairs: SQL over the catalog.

Each filter excludes episodes under a reason that no other filter has. Their order matters: the
solve rate of a task counts the attempts that `where` keeps, and the best of a group is the best
that all other filters kept.

Rewards say how good the agent's own actions were. Episodes labelled by a tutor are not filtered by
reward: a weak student must learn from the states that it reaches.
"""

from __future__ import annotations

from collections.abc import Iterator

from ludus.curation.catalog import Catalog
from ludus.curation.config import CurateConfig
from ludus.errors import ConfigError

DUPLICATE, DUPLICATE_PAIR = "duplicate", "duplicate pair"
MALFORMED_CALL = "malformed call"
_BEST_FIRST = "reward DESC NULLS LAST, turns, rowid"
"""Highest reward first, then the shortest, then the first in the files."""


def apply_filters(catalog: Catalog, config: CurateConfig) -> None:
    """Apply all filters but `best_of_group`, which has to follow deduplication."""
    # A fault or a missing reward is not a reward of 0.
    catalog.exclude("broken", "broken")
    if not config.keep_unscored:
        catalog.exclude("unscored", "reward IS NULL AND NOT tutored")
    if config.is_for_training:
        # No chat template can render these. A tutor's reply may be rendered if the student gave
        # none, or a malformed one.
        catalog.exclude("no reply", "reply IS NULL AND NOT tutored", detail="no assistant turn")
        catalog.exclude(
            MALFORMED_CALL,
            "bad_arguments AND NOT tutored",
            detail="arguments that are not a JSON object",
        )
    if config.where is not None:
        catalog.exclude("where", "NOT wanted", detail=config.where)
    if config.solve_rate is not None:
        low, high = config.solve_rate
        catalog.exclude(
            "solve-rate",
            """task NOT IN (
                SELECT task FROM episodes WHERE reason IS NULL AND reward NOT NULL GROUP BY task
                HAVING avg((reward >= ?)::INTEGER) BETWEEN ? AND ?
            )""",
            config.solved_at,
            low,
            high,
            detail=f"{low:g}..{high:g} of a task's attempts reach {config.solved_at:g}",
        )
    if config.min_reward is not None:
        catalog.exclude(
            "min-reward",
            "NOT tutored AND NOT coalesce(reward >= ?, false)",
            config.min_reward,
            detail=_except_tutored(catalog, f"reward >= {config.min_reward:g}"),
        )
    if config.top_fraction is not None:
        _exclude_by_window(
            catalog,
            "top-fraction",
            f"""row_number() OVER (PARTITION BY environment ORDER BY {_BEST_FIRST})
                > ceil({config.top_fraction!r} * count(*) OVER (PARTITION BY environment))""",
            among="NOT tutored",
            detail=_except_tutored(
                catalog, f"the best {config.top_fraction:g} of each environment"
            ),
        )


def exclude_duplicates(catalog: Catalog, *, within_tasks: bool = False) -> None:
    """Filter exact duplicates: keep the best of episodes with the same messages and tools."""
    task = "task, " if within_tasks else ""
    _exclude_by_window(
        catalog,
        DUPLICATE,
        f"row_number() OVER (PARTITION BY {task}prompt, completion, tools ORDER BY {_BEST_FIRST})"
        " > 1",
        detail="the same messages and tools" + (" at the same task" if within_tasks else ""),
    )


def keep_best_of_group(catalog: Catalog) -> None:
    _exclude_by_window(
        catalog,
        "best-of-group",
        f"row_number() OVER (PARTITION BY task ORDER BY {_BEST_FIRST}) > 1",
        among="NOT tutored",
        detail=_except_tutored(catalog, "the best attempt at each task"),
    )


def keep_first_of_group(catalog: Catalog) -> None:
    """Keep one attempt at each task, in the order of the tasks' first attempts."""
    _exclude_by_window(
        catalog,
        "same task",
        "row_number() OVER (PARTITION BY task ORDER BY rowid) > 1",
        detail="the first attempt at each task",
    )


def _exclude_by_window(
    catalog: Catalog, reason: str, condition: str, *, among: str = "true", detail: str
) -> None:
    """Exclude kept rows by a condition with a window function over the kept rows `among` which."""
    catalog.exclude(
        reason,
        f"""rowid IN (SELECT row FROM (
            SELECT rowid AS row, {condition} AS excluded FROM episodes
            WHERE reason IS NULL AND {among}
        ) WHERE excluded)""",
        detail=detail,
    )


def _except_tutored(catalog: Catalog, detail: str) -> str:
    """The detail of a filter by reward, which the episodes with a tutor's replies all pass."""
    count = catalog.tutored
    return f"{detail}; not for {count:,} with a tutor" if count else detail


_SAME_PROMPT_COLUMNS = "task, prompt, tools"
_UNPAIRED_DETAIL = {
    "best": "neither the best nor the worst attempt",
    "all": "too close to every other attempt",
}


def build_pairs(catalog: Catalog, config: CurateConfig) -> None:
    """Create the table `pairs`, and exclude the episodes that are in no pair.

    Pairs are built among the attempts of all runs with equal task, prompt and tools. Episodes with
    faults are already excluded, so the rejected side is always the model's doing. Episodes with a
    tutor are no attempts here: each of their corrections is a separate pair.
    """
    unscored = "reason IS NULL AND reward IS NULL AND NOT tutored"
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
            row_number() OVER (PARTITION BY {_SAME_PROMPT_COLUMNS} ORDER BY {_BEST_FIRST})
                AS from_best,
            row_number() OVER (PARTITION BY {_SAME_PROMPT_COLUMNS} ORDER BY reward, turns, rowid)
                AS from_worst
        FROM episodes WHERE reason IS NULL AND NOT tutored
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
        "NOT tutored AND rowid NOT IN (SELECT unnest([chosen, rejected]) FROM pairs)",
        detail="the same as another pair",
    )


def iter_pairs(catalog: Catalog) -> Iterator[tuple[int, int, str | None]]:
    """Yield the rows of the better and the worse attempt, and their split."""
    rows = catalog.stream(
        "SELECT chosen, rejected, split FROM pairs JOIN episodes ON chosen = episodes.rowid "
        "ORDER BY chosen, rejected"
    )
    return ((better, worse, split) for better, worse, split in rows)
