"""Callbacks through which `collect` reports its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ludus.rollout.collector import Collector
    from ludus.rollout.phase_progress import PhaseProgress


class CollectProgress:
    """Receives the progress of a run. This base class ignores it; override what you need."""

    def phase(self, progress: PhaseProgress) -> None:
        """A phase begins, such as loading a model; all of them come before the first episode."""

    def checked(self) -> None:
        """All checks have passed and nothing was written yet. Raise to refuse the run."""

    def begin(self, collector: Collector) -> None:
        """The first episodes are about to start."""

    def warn(self, message: str) -> None:
        """A warning for the user. May be called from another thread."""
