"""Notices an environment that works on the event loop for so long that all the others wait for it.

What never comes back is the watchdog's to name; this is about what comes back late, time and again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from ludus.client.endpoint import Endpoint, LocalEndpoint
from ludus.data.episode import Episode
from ludus.rollout.endpoints import EnvironmentEndpoint
from ludus.rollout.episode_status import EpisodeStatus

LAG_THRESHOLD_S = 0.2
MIN_LATE_TICKS = 3
"""Ticks that are late by that much and are no accident."""


def instant_environments(endpoints: Iterable[EnvironmentEndpoint]) -> list[str]:
    """Those that are played on the loop and never wait: all their time is taken from the others."""
    return [place.name for place in endpoints if _is_instant(place.endpoint)]


def _is_instant(endpoint: Endpoint) -> bool:
    if not isinstance(endpoint, LocalEndpoint):
        return False
    return not endpoint.env_spec.blocking and not endpoint.env_spec.is_async


@dataclass(slots=True)
class LoopLagMonitor:
    """Told of each tick how late it came, and of each attempt."""

    environments: Collection[str]
    warn: Callable[[str], None]
    _lags: list[float] = field(default_factory=list)
    _busy_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _warned: bool = False

    def record_attempt(self, episode: Episode) -> None:
        if episode.environment in self.environments and episode.timing is not None:
            self._busy_seconds[episode.environment] += episode.timing.environment_s

    def record_tick(self, lag: float, statuses: Iterable[EpisodeStatus]) -> None:
        """Say once who holds up the others, if it is an environment.

        A model that is made ready delays ticks too: only where environments have worked for a good
        part of the delay, it is theirs.
        """
        if self._warned or lag <= LAG_THRESHOLD_S:
            return
        self._lags.append(lag)
        worked = self._busy_seconds_with(statuses)
        if len(self._lags) >= MIN_LATE_TICKS and sum(worked.values()) > sum(self._lags) / 2:
            self._warned = True
            self.warn(
                f"{max(worked, key=worked.__getitem__)} holds up all other episodes while it "
                "works; write `blocking = True` in its class"
            )

    def _busy_seconds_with(self, statuses: Iterable[EpisodeStatus]) -> dict[str, float]:
        """Seconds of each environment, also for what is under way."""
        worked = self._busy_seconds.copy()
        for activity in statuses:
            if activity.environment in self.environments:
                worked[activity.environment] += activity.seconds["environment"]
        return worked
