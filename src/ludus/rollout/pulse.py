"""Notices an environment that works on the event loop for so long that all the others wait for it.

What never comes back is the watchdog's to name; this is about what comes back late, time and again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from ludus.client.endpoint import Endpoint, LocalEndpoint
from ludus.data.episode import Episode
from ludus.rollout.activity import Activity
from ludus.rollout.places import Place

LATE = 0.2
SEVERAL = 3
"""Ticks that are late by that much and are no accident."""


def suspects(places: Iterable[Place]) -> list[str]:
    """Those that are played on the loop and never wait: all their time is taken from the others."""
    return [place.name for place in places if _is_instant(place.endpoint)]


def _is_instant(endpoint: Endpoint) -> bool:
    if not isinstance(endpoint, LocalEndpoint):
        return False
    return not endpoint.contract.blocking and not endpoint.contract.waits


@dataclass(slots=True)
class Pulse:
    """Told of each tick how late it came, and of each attempt."""

    suspects: Collection[str]
    say: Callable[[str], None]
    _late: list[float] = field(default_factory=list)
    _worked: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _told: bool = False

    def attempted(self, episode: Episode) -> None:
        if episode.environment in self.suspects and episode.timing is not None:
            self._worked[episode.environment] += episode.timing.environment_s

    def beat(self, late: float, activities: Iterable[Activity]) -> None:
        """Say once who holds up the others, if it is an environment.

        A model that is made ready delays ticks too: only where environments have worked for a good
        part of the delay, it is theirs.
        """
        if self._told or late <= LATE:
            return
        self._late.append(late)
        worked = self._worked_with(activities)
        if len(self._late) >= SEVERAL and sum(worked.values()) > sum(self._late) / 2:
            self._told = True
            self.say(
                f"{max(worked, key=worked.__getitem__)} holds up all other episodes while it "
                "works; write `blocking = True` in its class"
            )

    def _worked_with(self, activities: Iterable[Activity]) -> dict[str, float]:
        """Seconds of each environment, also for what is under way."""
        worked = self._worked.copy()
        for activity in activities:
            if activity.environment in self.suspects:
                worked[activity.environment] += activity.seconds["environment"]
        return worked
