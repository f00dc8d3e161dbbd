"""The report of `curate`: what was kept, and why every other episode was left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from ludus.curation.catalog import UNREADABLE, Catalog, FilterStep
from ludus.curation.split import SplitByTask
from ludus.curation.token_lengths import TokenLengths
from ludus.curation.writers import WrittenRows
from ludus.data.tool_schema import JsonObject

_MAX_UNREADABLE_SHOWN = 20


@dataclass(frozen=True, slots=True)
class CurateReport:
    """Numbers of episodes, rows and tasks, and what each filter left out."""

    episodes: int
    kept: int
    steps: tuple[FilterStep, ...]
    left_out: dict[str, int]
    """Number of episodes by reason."""
    rows: dict[str, int]
    """Number of rows by split: `train`, and `test` if there is one."""
    tasks: dict[str, int]
    """Number of tasks by split."""
    families: int = 0
    """Number of tasks that were put into a split because of a near duplicate."""
    test_target: int | None = None
    """Number of tasks that `test_size` asks for."""
    unreadable: tuple[str, ...] = ()
    """The first unreadable lines, as `file:line`."""
    rewards: dict[str, float] = field(default_factory=dict)
    """`min` and `max` reward of the kept episodes, and their `mean` over tasks."""
    tutored: int = 0
    """Kept episodes whose rows have their loss on the replies of a tutor."""
    agreement: float | None = None
    """The share of their turns in which student and tutor agree."""
    masked_rows: int = 0
    """Rows in which a reply has a weight of 0, and so no loss."""
    lengths: TokenLengths | None = None
    """Lengths of the training rows in the student's tokens."""

    def as_json(self) -> JsonObject:
        return asdict(self)


def build_report(catalog: Catalog, written: WrittenRows, split: SplitByTask) -> CurateReport:
    """Build the report from the catalog after all filters, and what was written."""
    tasks = dict(
        catalog.sql(
            "SELECT coalesce(split, 'train'), count(DISTINCT task) FROM episodes "
            "WHERE reason IS NULL GROUP BY 1"
        )
    )
    [(low, high)] = catalog.sql(
        "SELECT min(reward), max(reward) FROM episodes WHERE reason IS NULL"
    )
    mean = catalog.mean_reward
    unreadable = catalog.sql(
        "SELECT rowid FROM episodes WHERE reason = ? ORDER BY rowid LIMIT ?",
        UNREADABLE,
        _MAX_UNREADABLE_SHOWN,
    )
    return CurateReport(
        episodes=catalog.total,
        kept=catalog.kept,
        steps=tuple(catalog.steps),
        left_out=catalog.excluded_counts,
        rows=written.by_split,
        tasks={name: tasks.get(name, 0) for name in written.by_split},
        families=split.near_copies,
        test_target=split.test_target,
        unreadable=tuple("{}:{}".format(*catalog.location(row)) for (row,) in unreadable),
        rewards={} if mean is None else {"min": low, "mean": mean.value, "max": high},
        tutored=catalog.tutored,
        agreement=written.agreement,
        masked_rows=written.masked,
    )
