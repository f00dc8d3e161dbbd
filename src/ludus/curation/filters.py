"""Which episodes are worth training on: the steps that ask for no more than a row of the catalog.

Each step leaves some out under a reason of its own. The order is part of the meaning: a task's
solve rate is that of the attempts that `where` lets through, and the best of a group is the best
of what all other steps left.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from ludus.curation.catalog import Catalog
from ludus.errors import ConfigError

MALFORMED_CALL = "malformed call"
DUPLICATE = "duplicate"
DUPLICATE_PAIR = "duplicate pair"
BEST_FIRST = "reward DESC NULLS LAST, turns, rowid"
"""Of two episodes with the same reward, the shorter; then the one that was read first."""


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """What is wanted of an episode."""

    where: str | None = None
    """A condition in SQL over an episode's fields."""
    min_reward: float | None = None
    min_turns: int | None = None
    max_turns: int | None = None
    solve_rate: tuple[float, float] | None = None
    """Only tasks that are solved this often: neither too hard nor too easy."""
    solved_at: float = 1.0
    """The reward from which an attempt has solved its task."""
    top_fraction: float | None = None
    """The best part of each environment's episodes: rewards of two of them do not compare."""
    best_of_group: bool = False
    unscored: bool = False
    """Keep what has no reward, as long as nothing broke it."""

    def __post_init__(self) -> None:
        if self.where is not None and not self.where.strip():
            raise ConfigError("--where is empty. Leave it out, or write a condition in SQL.")
        for name, bound in (("min-reward", self.min_reward), ("solved-at", self.solved_at)):
            if bound is not None and not isfinite(bound):
                raise ConfigError(f"--{name} {bound} cannot be: a reward is a finite number.")
        if self.top_fraction is not None and not 0 < self.top_fraction <= 1:
            raise ConfigError(f"--top-fraction {self.top_fraction} is not above 0 and at most 1.")
        if self.solve_rate is not None:
            low, high = self.solve_rate
            if not 0 <= low <= high <= 1:
                raise ConfigError(f"--solve-rate {low}..{high} is no band within 0..1.")


def exclude_faults(catalog: Catalog, *, unscored: bool = False) -> None:
    """What the infrastructure broke is nobody's score, and what has no score is no zero."""
    catalog.exclude("broken", "broken")
    if not unscored:
        catalog.exclude("unscored", "reward IS NULL")


def exclude_untrainable(catalog: Catalog) -> None:
    """What no chat template can render as a turn of the model's."""
    catalog.exclude("no reply", "reply IS NULL", detail="the model never spoke")
    catalog.exclude(MALFORMED_CALL, "bad_arguments", detail="arguments that are not a JSON object")


def apply_filters(catalog: Catalog, config: FilterConfig) -> None:
    """Everything but the best of each group, which comes after the copies are gone."""
    if config.where is not None:
        catalog.exclude("where", "NOT wanted", detail=config.where)
    if config.solve_rate is not None:
        _exclude_by_solve_rate(catalog, config.solve_rate, config.solved_at)
    for reason, wanted, bound in (
        ("min-reward", "reward >= {}", config.min_reward),
        ("min-turns", "turns >= {}", config.min_turns),
        ("max-turns", "turns <= {}", config.max_turns),
    ):
        if bound is not None:
            condition = f"NOT coalesce({wanted.format('?')}, false)"
            catalog.exclude(reason, condition, bound, detail=wanted.format(f"{bound:g}"))
    if config.top_fraction is not None:
        _exclude_below_top_fraction(catalog, config.top_fraction)


def _exclude_by_solve_rate(catalog: Catalog, band: tuple[float, float], solved_at: float) -> None:
    catalog.exclude(
        "solve-rate",
        """task NOT IN (
            SELECT task FROM episodes WHERE reason IS NULL AND reward NOT NULL GROUP BY task
            HAVING avg((reward >= ?)::INTEGER) BETWEEN ? AND ?
        )""",
        solved_at,
        *band,
        detail=f"{band[0]:g}..{band[1]:g} of a task's attempts reach {solved_at:g}",
    )


def _exclude_below_top_fraction(catalog: Catalog, fraction: float) -> None:
    exclude_by_window(
        catalog,
        "top-fraction",
        f"""row_number() OVER (PARTITION BY environment ORDER BY {BEST_FIRST})
            > ceil({fraction!r} * count(*) OVER (PARTITION BY environment))""",
        detail=f"the best {fraction:g} of each environment",
    )


def keep_best_of_group(catalog: Catalog) -> None:
    exclude_by_window(
        catalog,
        "best-of-group",
        f"row_number() OVER (PARTITION BY task ORDER BY {BEST_FIRST}) > 1",
        detail="one attempt at each task",
    )


def exclude_by_window(catalog: Catalog, reason: str, condition: str, *, detail: str) -> None:
    """Leave out the kept rows for which a window function over the kept rows says so."""
    catalog.exclude(
        reason,
        f"""rowid IN (SELECT place FROM (
            SELECT rowid AS place, {condition} AS below FROM episodes WHERE reason IS NULL
        ) WHERE below)""",
        detail=detail,
    )


def exclude_duplicates(catalog: Catalog, *, within_tasks: bool = False) -> None:
    """Of episodes that say the same, word for word, the best stays: of all, or of each task's."""
    task = "task, " if within_tasks else ""
    exclude_by_window(
        catalog,
        DUPLICATE,
        f"row_number() OVER (PARTITION BY {task}prompt, completion, tools ORDER BY {BEST_FIRST}) > 1",
        detail="the same messages and tools" + (", at the same task" if within_tasks else ""),
    )


def count_duplicate_tasks(catalog: Catalog) -> int:
    """How many tasks are gone only because all that is left of them are copies of others."""
    found = catalog.sql(
        """SELECT count(DISTINCT task) FROM episodes WHERE reason IN (?, ?)
            AND task NOT IN (SELECT task FROM episodes WHERE reason IS NULL)""",
        DUPLICATE,
        DUPLICATE_PAIR,
    )
    return int(found[0][0])
