"""The record of an episode, and of the fault that ended it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ludus.data.episode import Episode, Fault, Timing
from ludus.rollout.monitoring import EpisodeStatus
from ludus.rollout.plan import Assignment


def build_episode_record(
    assignment: Assignment,
    *,
    started_at: datetime,
    status: EpisodeStatus,
    **fields: Any,
) -> Episode:
    """Build the record of an episode; `fields` are those that depend on how it was played."""
    return Episode(
        episode_id=assignment.episode_id,
        environment=assignment.environment,
        task=assignment.task,
        seed=assignment.seed,
        group_id=assignment.group_id,
        timing=Timing(
            started_at=started_at,
            ended_at=datetime.now(UTC),
            model_s=round(status.seconds["model"], 6),
            environment_s=round(status.seconds["environment"], 6),
        ),
        **fields,
    )


def fault_from_exception(error: BaseException, status: EpisodeStatus) -> Fault:
    """Record an exception, with the side on which it occurred."""
    message = str(error) or repr(error)
    return Fault(kind=type(error).__name__, where=status.side, message=message)


def deadline_fault(status: EpisodeStatus, timeout_s: float | None) -> Fault:
    """Record that the episode time-out expired, with what the episode was waiting for."""
    message = (
        f"The episode was not over after {timeout_s:g} s; "
        f"the last {status.elapsed():.1f} s went into {status.activity}."
    )
    return Fault(kind="Deadline", where=status.side, message=message)
