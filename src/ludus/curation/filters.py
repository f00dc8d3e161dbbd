"""Filters and exact duplicates: SQL over the catalog.

Each filter excludes episodes under a reason that no other filter has. Their order matters: the
solve rate of a task counts the attempts that `where` keeps, and the best of a group is the best
that all other filters kept.

Rewards say how good the agent's own actions were. Episodes labelled by a tutor are not filtered by
reward: a weak student must learn from the states that it reaches.
"""

from __future__ import annotations

from ludus.curation.catalog import Catalog
from ludus.curation.config import CurateConfig

DUPLICATE, DUPLICATE_PAIR = "duplicate", "duplicate pair"
MALFORMED_CALL = "malformed call"
BEST_FIRST = "reward DESC NULLS LAST, turns, rowid"
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
            f"""row_number() OVER (PARTITION BY environment ORDER BY {BEST_FIRST})
                > ceil({config.top_fraction!r} * count(*) OVER (PARTITION BY environment))""",
            among="NOT tutored",
            detail=_except_tutored(
                catalog, f"the best {config.top_fraction:g} of each environment"
            ),
        )


def exclude_duplicates(catalog: Catalog, *, within_tasks: bool = False) -> None:
    """Exclude exact duplicates: keep the best of the episodes with the same messages and tools."""
    task = "task, " if within_tasks else ""
    _exclude_by_window(
        catalog,
        DUPLICATE,
        f"row_number() OVER (PARTITION BY {task}prompt, completion, tools ORDER BY {BEST_FIRST})"
        " > 1",
        detail="the same messages and tools" + (" at the same task" if within_tasks else ""),
    )


def keep_best_of_group(catalog: Catalog) -> None:
    _exclude_by_window(
        catalog,
        "best-of-group",
        f"row_number() OVER (PARTITION BY task ORDER BY {BEST_FIRST}) > 1",
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
