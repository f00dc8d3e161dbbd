"""Filters that need only an episode's row in the catalog.

Each filter excludes episodes under its own reason. Their order matters: the solve rate of a task
counts the attempts that `where` keeps, and the best of a group is the best that all other filters
kept.

Rewards say how good the agent's own actions were. Episodes that are trained on by the replies of a
tutor are not filtered by them: the states that a weak student reaches are what it must learn from.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Annotated

from ludus.curation.catalog import Catalog
from ludus.data.config import check_at_least, check_field_types
from ludus.errors import ConfigError
from ludus.options import Option

MALFORMED_CALL = "malformed call"
BEST_FIRST = "reward DESC NULLS LAST, turns, rowid"
"""Highest reward first, then the shortest, then the first in the files."""


def _parse_range(text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        if not dots:
            raise ValueError
        return float(low or 0), float(high or 1)
    except ValueError:
        raise ValueError(f"{text!r} is not a range; write 0.1..0.9, ..0.5 or 0.5..") from None


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """Which episodes to keep."""

    where: Annotated[str | None, Option("Selection", metavar="SQL")] = None
    """SQL condition over the fields of an episode."""
    min_reward: Annotated[float | None, Option("Selection")] = None
    """Minimum reward."""
    min_turns: Annotated[int | None, Option("Selection", hidden=True)] = None
    """Minimum number of replies."""
    max_turns: Annotated[int | None, Option("Selection", hidden=True)] = None
    """Maximum number of replies."""
    solve_rate: Annotated[
        tuple[float, float] | None, Option("Selection", metavar="LOW..HIGH", parse=_parse_range)
    ] = None
    """Keep tasks whose fraction of solved attempts lies in this range: 0.1..0.9."""
    solved_at: Annotated[float, Option("Selection", hidden=True)] = 1.0
    """Minimum reward of a solved attempt."""
    top_fraction: Annotated[float | None, Option("Selection", advanced=True)] = None
    """Keep this fraction of each environment's episodes, the best ones: 0.25."""
    best_of_group: Annotated[bool, Option("Selection")] = False
    """Keep the best attempt at each task."""
    keep_unscored: Annotated[bool, Option("Selection", hidden=True)] = False
    """Keep episodes without a reward, unless a fault ended them."""

    def __post_init__(self) -> None:
        check_field_types(self)
        for name in ("min_turns", "max_turns"):
            check_at_least(name, getattr(self, name), 0)
        if self.where is not None and not self.where.strip():
            raise ConfigError("`where` must be an SQL condition, got an empty string.")
        for name in ("min_reward", "solved_at"):
            reward = getattr(self, name)
            if reward is not None and not isfinite(reward):
                raise ConfigError(f"`{name}` must be a finite number, got {reward}.")
        if self.top_fraction is not None and not 0 < self.top_fraction <= 1:
            raise ConfigError(
                f"`top_fraction` must be above 0 and at most 1, got {self.top_fraction}."
            )
        if self.solve_rate is not None:
            low, high = self.solve_rate
            if not 0 <= low <= high <= 1:
                raise ConfigError(f"`solve_rate` must be a range within 0..1, got {low}..{high}.")


def exclude_faults(catalog: Catalog, *, keep_unscored: bool = False) -> None:
    """Exclude episodes that a fault ended, and unscored ones: neither is a reward of 0."""
    catalog.exclude("broken", "broken")
    if not keep_unscored:
        catalog.exclude("unscored", "reward IS NULL AND NOT tutored")


def exclude_untrainable(catalog: Catalog) -> None:
    """Exclude episodes that no chat template can render.

    A tutor's reply may be rendered if the student gave none, or a malformed one.
    """
    catalog.exclude("no reply", "reply IS NULL AND NOT tutored", detail="no assistant turn")
    catalog.exclude(
        MALFORMED_CALL,
        "bad_arguments AND NOT tutored",
        detail="arguments that are not a JSON object",
    )


def apply_filters(catalog: Catalog, config: FilterConfig) -> None:
    """Apply all filters but `best_of_group`, which has to follow deduplication."""
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
    for reason, condition, bound in (
        ("min-turns", "turns >= {}", config.min_turns),
        ("max-turns", "turns <= {}", config.max_turns),
    ):
        if bound is not None:
            violated = f"NOT coalesce({condition.format('?')}, false)"
            catalog.exclude(reason, violated, bound, detail=condition.format(f"{bound:g}"))
    if config.top_fraction is not None:
        exclude_by_window(
            catalog,
            "top-fraction",
            f"""row_number() OVER (PARTITION BY environment ORDER BY {BEST_FIRST})
                > ceil({config.top_fraction!r} * count(*) OVER (PARTITION BY environment))""",
            among="NOT tutored",
            detail=_except_tutored(
                catalog, f"the best {config.top_fraction:g} of each environment"
            ),
        )


def keep_best_of_group(catalog: Catalog) -> None:
    exclude_by_window(
        catalog,
        "best-of-group",
        f"row_number() OVER (PARTITION BY task ORDER BY {BEST_FIRST}) > 1",
        among="NOT tutored",
        detail=_except_tutored(catalog, "the best attempt at each task"),
    )


def keep_first_of_group(catalog: Catalog) -> None:
    """Keep one attempt at each task, so that the tasks have the order of their first attempts."""
    exclude_by_window(
        catalog,
        "same task",
        "row_number() OVER (PARTITION BY task ORDER BY rowid) > 1",
        detail="the first attempt at each task",
    )


def exclude_by_window(
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
