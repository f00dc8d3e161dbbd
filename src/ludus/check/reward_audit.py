"""The reward audit: players that do not try to solve the task must score below the oracle.

All are tried on a few seeds, and the best of them play on. A player is clearly below the oracle if
the 95 % interval of the mean difference of their returns lies above `MARGIN` times the scale of the
rewards. It must also not reach the top more often than a coin gives the right answer to questions
with yes and no.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from ludus.agents.oracle import OracleAgent
from ludus.check.episodes import CheckTranscript, offers_oracle, play_check_episode
from ludus.check.weak_players import WeakAgent, weak_strategies
from ludus.client.endpoint import LocalEndpoint, connect
from ludus.client.session import Session
from ludus.data.interval_estimates import MIN_SAMPLES, Interval, mean_interval
from ludus.environment.spec import EnvSpec

MARGIN = 0.1
FIRST_SEEDS, MAX_SEEDS, SEEDS_FACTOR = 8, 128, 4
"""More seeds are played while chance leaves a comparison undecided."""
MIN_TRIALS, FINALISTS = 3, 6
"""Seeds on which every player is tried, or a quarter of all if that is more; who plays on."""
MAX_NAMED = 3
COIN_CHANCE = 0.001
"""A player reaches the top on most seeds if a coin does so as often with a lower probability."""
MIN_TURNS = 20
"""Turn limit of weak players, which is higher if the oracle needs more."""
SOFT_LIMIT_S, HARD_LIMIT_S = 10.0, 30.0
"""Times after which only `MIN_SAMPLES` seeds are completed, and after which nothing is played."""


@dataclass(frozen=True, slots=True)
class PlayerComparison:
    """The mean return of a weak player, and its difference from the reference's."""

    player: str
    mean: float
    difference: float
    interval: Interval
    """Of the difference; its ends are equal if the difference is the same on every seed."""
    scale: float
    """The size of the rewards: what the reference earns, or how far the lowest mean is below it."""
    tops: int
    """The seeds on which the player is not below the reference, up to the margin."""
    seeds: int

    @property
    def tops_most_seeds(self) -> bool:
        """Whether the player reaches the top more often than a coin would."""
        return beats_coin(self.tops, self.seeds)

    @property
    def is_clear(self) -> bool:
        """Whether the player is clearly below the reference."""
        return self.interval.low > MARGIN * self.scale and not self.tops_most_seeds

    @property
    def is_undecided(self) -> bool:
        """Whether the audit needs more seeds to tell if the player is clearly below."""
        is_near = self.interval.low <= MARGIN * self.scale < self.interval.high
        return not self.tops_most_seeds and (is_near or 2 * self.tops > self.seeds)


def beats_coin(right: int, questions: int) -> bool:
    """Whether a coin would be right this often with a probability below `COIN_CHANCE`."""
    ways = sum(math.comb(questions, heads) for heads in range(right, questions + 1))
    return bool(ways < COIN_CHANCE * 2**questions)


@dataclass(slots=True)
class RewardAudit:
    """Returns by seed, of the reference and of each weak player that was not left out."""

    reference: str
    reference_returns: list[float] = field(default_factory=list)
    player_returns: dict[str, list[float]] = field(default_factory=dict)
    tried: int = 0

    @property
    def seeds(self) -> int:
        """The seeds that all have played."""
        return min(map(len, (self.reference_returns, *self.player_returns.values())))

    def compare(self) -> list[PlayerComparison]:
        """Compare every player with the reference, the best first."""
        seeds, found = self.seeds, []
        means = {name: fmean(values[:seeds]) for name, values in self.player_returns.items()}
        reference = fmean(self.reference_returns[:seeds])
        scale = max(abs(reference), reference - min(means.values()))
        for name, mean in means.items():
            pairs = zip(self.reference_returns[:seeds], self.player_returns[name], strict=False)
            differences = [top - value for top, value in pairs]
            difference = fmean(differences)
            # None: all differences are equal.
            interval = mean_interval(differences) or Interval(difference, difference)
            tops = sum(each <= MARGIN * scale for each in differences)
            found.append(PlayerComparison(name, mean, difference, interval, scale, tops, seeds))
        return sorted(found, key=lambda each: -each.mean)

    def describe_best(self) -> str:
        """The best player's mean return, and the reference's if known, in one line."""
        best = self.compare()[0]
        mean = fmean(self.reference_returns[: self.seeds])
        reference = "" if math.isnan(mean) else f"; {self.reference} {mean:.3g}"
        player = f"best of {self.tried} players: {best.player} {best.mean:.3g}"
        return f"{player}{reference} ({self.seeds} seeds)"

    def describe_unclear(self) -> str:
        """The best players that are not clearly below the reference, in one line; '' if all are."""
        parts = []
        for each in [each for each in self.compare() if not each.is_clear][:MAX_NAMED]:
            low, high = each.interval
            sure = "on each of" if low == high else f"95 % interval {low:.3g} to {high:.3g}, from"
            parts.append(
                f"{each.player} scored {each.mean:.3g} against "
                f"{each.mean + each.difference:.3g} of the {self.reference} (difference "
                f"{each.difference:.3g}, {sure} {self.seeds} seeds, the top on {each.tops})"
            )
        return "; ".join(parts)


PlayReference = Callable[[int], Awaitable[CheckTranscript]]
"""Plays the oracle's episode of a seed."""


async def audit_environment(spec: str, *, seeds: int, patience: float = 1.0) -> RewardAudit:
    """Audit an environment of this process on `seeds` seeds, less if time runs out."""
    endpoint = connect(spec)
    assert isinstance(endpoint, LocalEndpoint)
    env_spec, play = endpoint.env_spec, None
    async with endpoint.session() as session:
        if await offers_oracle(env_spec):
            play = partial(play_check_episode, session, env_spec, OracleAgent())
        return await audit_rewards(
            session, env_spec, play, seeds=seeds, max_seeds=seeds, patience=patience
        )


async def audit_rewards(
    session: Session,
    env_spec: EnvSpec | None,
    play_reference: PlayReference | None,
    *,
    seeds: int,
    max_seeds: int = MAX_SEEDS,
    patience: float = 1.0,
) -> RewardAudit:
    """Play weak players on `seeds` seeds, and on up to `max_seeds` while one is undecided.

    Without an oracle they are compared with `max_reward`, or with nothing if it is unknown. Less
    than `MIN_SAMPLES` seeds are played if time runs out; `patience` multiplies the limits.
    """
    start, max_turns = time.monotonic(), MIN_TURNS
    top = getattr(env_spec and env_spec.cls, "max_reward", None)
    audit = RewardAudit("max_reward" if play_reference is None else "oracle")
    strategies = weak_strategies(session.tools)

    async def add_reference(seed: int) -> None:
        nonlocal max_turns
        if play_reference is None:
            audit.reference_returns.append(math.nan if top is None else top)
            return
        episode = await play_reference(seed)
        audit.reference_returns.append(episode.total_reward)
        max_turns = max(max_turns, len(episode.actions))

    async def play(name: str, seed: int) -> None:
        agent = WeakAgent(strategies[name])
        episode = await play_check_episode(session, env_spec, agent, seed, max_turns=max_turns)
        audit.player_returns.setdefault(name, []).append(episode.total_reward)

    def is_over(limit: float) -> bool:
        return time.monotonic() - start > limit * patience

    trials = range(max(MIN_TRIALS, seeds // 4))
    for seed in trials:
        await add_reference(seed)
    for name in strategies:
        if audit.tried >= FINALISTS and is_over(SOFT_LIMIT_S):
            break
        for seed in trials:
            await play(name, seed)
            if is_over(HARD_LIMIT_S):
                return audit
        audit.tried += 1
    finalists = sorted(audit.player_returns.items(), key=lambda item: -fmean(item[1]))[:FINALISTS]
    audit.player_returns = dict(finalists)
    while audit.seeds < seeds:
        if audit.seeds >= MIN_SAMPLES and is_over(SOFT_LIMIT_S):
            return audit
        seed = audit.seeds
        await add_reference(seed)
        for name in audit.player_returns:
            await play(name, seed)
            if is_over(HARD_LIMIT_S):
                return audit
        if audit.seeds == seeds and any(each.is_undecided for each in audit.compare()):
            seeds = max(seeds, min(SEEDS_FACTOR * seeds, max_seeds))
    return audit
