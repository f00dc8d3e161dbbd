"""How a run is played, apart from what is played."""

from __future__ import annotations

from dataclasses import dataclass

HANG_WARNING = 60.0


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a run is played; none of it changes what is played."""

    concurrency: int = 64
    """Episodes at once, at the most, where the agent does not say how many calls it takes."""
    attempts: int = 3
    """How often an episode is tried that the infrastructure breaks."""
    retry_pause: float = 1.0
    patience: float = 120.0
    """Seconds that a server may be gone in the middle of a run."""
    hang_warning: float = HANG_WARNING
    """Seconds after which the watchdog names what is waited for."""
