"""Which episodes the page shows, as SQL that `ludus curate --where` takes too."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ludus.data.locked_database import quote_sql
from ludus.errors import ConfigError

SORT_COLUMNS = {
    "line": "_id",
    "reward": "reward",
    "turns": "turns",
    "tokens": "_tokens",
    "seconds": "_seconds",
    "cost": "cost",
    "step": "_step",
    "episode": "episode_id",
    "stop": "stop_reason",
    "environment": "environment",
    "model": "model",
    "group": "group_id",
}
"""SQL by the name of a column in the page."""
_REGEX_CHARS = re.compile(r"[\\.+*?()|\[\]{}^$]")


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Which episodes, in which order."""

    runs: tuple[str, ...] = ()
    """Keys of entries; empty: all."""
    where: str = ""
    search: str = ""
    stop_reason: str = ""
    group_id: str = ""
    sort: str = "line"
    descending: bool = False

    def __post_init__(self) -> None:
        if self.sort not in SORT_COLUMNS:
            raise ConfigError(f"`sort` must be one of {', '.join(SORT_COLUMNS)}, got {self.sort}.")

    @property
    def condition(self) -> str:
        """All but the runs as one condition; empty: no filter."""
        conditions = []
        if where := self.where.strip():
            # A comment at the end must not swallow what follows.
            conditions.append(f"({where}\n)" if "--" in where else f"({where})")
        if search := self.search.strip():
            conditions.append(search_condition(search))
        if self.stop_reason:
            conditions.append(f"stop_reason = {quote_sql(self.stop_reason)}")
        if self.group_id:
            conditions.append(f"group_id = {quote_sql(self.group_id)}")
        return " AND ".join(conditions)


def search_condition(text: str) -> str:
    """The condition that a message or the arguments of a tool call contain a text, in any case.

    As a regular expression, which takes a third of the time of `contains(lower(...))`.
    """
    pattern = quote_sql("(?i)" + _REGEX_CHARS.sub(r"\\\g<0>", text))
    arguments = f"regexp_matches(c.function.arguments, {pattern})"
    return (
        "len(list_filter(messages, lambda m: "
        f"regexp_matches(m.content, {pattern}) OR "
        f"coalesce(regexp_matches(m.reasoning_content, {pattern}), false) OR "
        f"coalesce(len(list_filter(m.tool_calls, lambda c: {arguments})) > 0, false))) > 0"
    )
