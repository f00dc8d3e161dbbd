"""The reward audit: players that do not try to solve the task must score below the oracle.

All play the same seeds. A player is clearly below the oracle if the 95 % interval of the mean
difference of their returns lies above `MARGIN` times the scale of the rewards.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import fmean

from ludus.check.episodes import EpisodePlayer, Transcript
from ludus.check.weak_players import WeakAgent, weak_strategies
from ludus.client.session import Session
from ludus.data.intervals import MIN_SAMPLES, Interval, mean_interval
from ludus.environment.spec import EnvSpec

MARGIN = 0.1
FIRST_SEEDS, MAX_SEEDS, SEEDS_FACTOR = 8, 128, 4
"""More seeds are played while chance leaves a comparison undecided."""
MIN_TURNS = 20
"""Turn limit of weak players, which is higher where the oracle needs more."""
SOFT_LIMIT_S, HARD_LIMIT_S = 10.0, 30.0
"""Times after which only `MIN_SAMPLES` seeds are completed, and after which nothing is played."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What weak players are compared with."""

    name: str
    play: Callable[[int], Awaitable[Transcript]] | None = None
    """Plays the episode of a seed."""
    constant: float = 0.0
    """The return in every episode, where none is played."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The mean return of a weak player, and its difference from that of the reference."""

    player: str
    mean: float
    difference: float
    interval: Interval
    """That of the difference; its ends are equal if the difference is the same on every seed."""
    margin: float

    @property
    def is_clear(self) -> bool:
        """Whether the player is clearly below the reference."""
        return self.interval.low > self.margin

    @property
    def is_undecided(self) -> bool:
        """Whether more seeds may show that the player is clearly below."""
        return self.interval.low <= self.margin < self.interval.high


@dataclass(slots=True)
class RewardAudit:
    """Returns by seed, of the reference and of each weak player."""

    reference: str
    """The name of the reference."""
    reference_returns: list[float] = field(default_factory=list)
    player_returns: dict[str, list[float]] = field(default_factory=dict)

    @property
    def seeds(self) -> int:
        return len(self.reference_returns)

    def add(self, reference: float, players: dict[str, float]) -> None:
        """Add the returns of the next seed."""
        self.reference_returns.append(reference)
        for name, value in players.items():
            self.player_returns.setdefault(name, []).append(value)

    def compare(self) -> list[Comparison]:
        """Compare every player with the reference."""
        reference = fmean(self.reference_returns)
        lowest = min(fmean(values) for values in self.player_returns.values())
        scale = max(abs(reference), reference - lowest)
        comparisons = []
        for name, values in self.player_returns.items():
            pairs = zip(self.reference_returns, values, strict=True)
            differences = [best - value for best, value in pairs]
            difference = fmean(differences)
            # None: all differences are equal.
            interval = mean_interval(differences) or Interval(difference, difference)
            mean, margin = fmean(values), MARGIN * scale
            comparisons.append(Comparison(name, mean, difference, interval, margin))
        return comparisons

    def describe_scores(self) -> str:
        """The mean returns, in one line."""
        players = [f"{each.player} {each.mean:.3g}" for each in self.compare()]
        reference = fmean(self.reference_returns)
        scores = ", ".join(players) + f"; {self.reference} {reference:.3g}"
        return f"{scores} ({self.seeds} seeds)"

    def describe_unclear(self) -> str:
        """The players that are not clearly below the reference, in one line; '' if all are."""
        parts = []
        for each in self.compare():
            low, high = each.interval
            sure = "on each of" if low == high else f"95 % interval {low:.3g} to {high:.3g}, from"
            if not each.is_clear:
                parts.append(
                    f"{each.player} scored {each.mean:.3g} against "
                    f"{each.mean + each.difference:.3g} of the {self.reference} (difference "
                    f"{each.difference:.3g}, {sure} {self.seeds} seeds)"
                )
        return "; ".join(parts)


async def audit_rewards(
    session: Session,
    env_spec: EnvSpec | None,
    reference: Reference,
    *,
    seeds: int,
    max_seeds: int = MAX_SEEDS,
) -> RewardAudit:
    """Play weak players on `seeds` seeds, and on up to `max_seeds` while one is undecided.

    Less than `MIN_SAMPLES` seeds are played only if time runs out.
    """
    start = time.monotonic()
    audit = RewardAudit(reference.name)
    strategies = weak_strategies(session.tools)
    max_turns = MIN_TURNS
    while audit.seeds < seeds:
        seed = audit.seeds
        best = reference.constant
        if reference.play is not None:
            episode = await reference.play(seed)
            best = episode.total_reward
            max_turns = max(max_turns, len(episode.actions))
        returns = {}
        for name, strategy in strategies.items():
            player = EpisodePlayer(env_spec, WeakAgent(strategy), max_turns=max_turns)
            returns[name] = (await player.play(session, seed)).total_reward
            if time.monotonic() - start > HARD_LIMIT_S:
                return audit
        audit.add(best, returns)
        if audit.seeds >= MIN_SAMPLES and time.monotonic() - start > SOFT_LIMIT_S:
            return audit
        if audit.seeds == seeds and any(each.is_undecided for each in audit.compare()):
            seeds = max(seeds, min(SEEDS_FACTOR * seeds, max_seeds))
    return audit
