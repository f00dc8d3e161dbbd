"""Who is told how a run goes. Terminals and log files are the command line's business."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ludus.rollout.collector import Collector
    from ludus.rollout.progress import PhaseProgress


class CollectProgress:
    """Told how a run goes. This one keeps it to itself."""

    def phase(self, progress: PhaseProgress) -> None:
        """Another phase begins, before the first episode is played."""

    def checked(self) -> None:
        """All is in order, and nothing has been made yet: the last moment to object."""

    def begin(self, collector: Collector) -> None:
        """The first episodes are about to be played."""

    def warn(self, words: str) -> None:
        """Something that a person should know; may come from another thread."""
