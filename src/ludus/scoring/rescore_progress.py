"""Callbacks through which `rescore` reports its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ludus.scoring.rescorer import Rescorer


class RescoreProgress:
    """Receives the progress of a run. This base class ignores it; override what you need."""

    def begin(self, rescorer: Rescorer) -> None:
        """The first episodes are about to be scored."""

    def advance(self, episodes: int) -> None:
        """So many more episodes are recorded."""

    def warn(self, message: str) -> None:
        """A warning for the user."""
