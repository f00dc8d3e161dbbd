"""How a run is played, apart from what is played."""

from __future__ import annotations

from dataclasses import dataclass

STALL_WARNING_S = 60.0


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """How a run is played; none of it changes what is played."""

    concurrency: int = 64
    """Episodes at once, at the most, where the agent does not say how many calls it takes."""
    max_attempts: int = 3
    """How often an episode is tried that the infrastructure breaks."""
    retry_delay: float = 1.0
    reconnect_timeout: float = 120.0
    """Seconds that a server may be gone in the middle of a run."""
    stall_warning: float = STALL_WARNING_S
    """Seconds after which the watchdog names what is waited for."""
