"""Statistics of a run (counts, rewards, tokens, faults, speed), its summary, and its budget."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ludus.data.episode import Episode, Usage
from ludus.data.episode_reader import EpisodeHead, ResumeIndex, ResumeTotals, read_resume_index
from ludus.data.files import Checksum
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject

INITIAL_CONCURRENCY = 4
"""Concurrent episodes while the cost of an episode is unknown."""


@dataclass
class RunStats:
    """Counts over the whole run, including earlier starts."""

    planned: int
    remaining: int
    """Episodes that are still to be played."""
    index: ResumeIndex = field(default_factory=ResumeIndex)
    active: int = 0
    costed_attempts: int = 0
    """Number of attempts whose usage is known."""
    new_episodes: int = 0
    """Episodes recorded since this start."""
    faults: Counter[str] = field(default_factory=Counter)
    """Broken attempts since this start, by kind of fault, retried ones included."""
    usage_before: Usage = field(default_factory=Usage)
    """Usage recorded by earlier starts."""
    usage_now: Usage = field(default_factory=Usage)
    """Usage of every attempt since this start, including broken ones."""
    started_at: float = field(default_factory=time.monotonic)

    @classmethod
    def from_index(
        cls, index: ResumeIndex, planned: int, *, retry_broken: bool = False
    ) -> RunStats:
        """Continue from the recorded episodes."""
        totals = index.totals
        return cls(
            planned=planned,
            remaining=index.count_pending(planned, retry_broken=retry_broken),
            index=index,
            costed_attempts=totals.episodes,
            usage_before=Usage(
                prompt_tokens=totals.prompt_tokens,
                completion_tokens=totals.completion_tokens,
                cost=totals.cost,
            ),
        )

    def add(self, episode: Episode, line: bytes = b"") -> None:
        """Count a recorded episode; `line` is its line of the journal."""
        self.index.add([EpisodeHead.from_episode(episode)])
        if self.index.checksum is not None:
            self.index.checksum = self.index.checksum.extend(line)
        self.new_episodes += 1
        self.remaining -= 1

    def record_attempt(self, episode: Episode) -> None:
        """Count an attempt, which may be retried."""
        self.costed_attempts += 1
        self.usage_now += episode.usage
        if episode.error is not None:
            self.faults[episode.error.kind] += 1

    @property
    def totals(self) -> ResumeTotals:
        return self.index.totals

    @property
    def done(self) -> int:
        """Planned episodes that are recorded."""
        return self.planned - self.remaining

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def rate(self) -> float:
        """Episodes per second since this start."""
        return self.new_episodes / max(self.seconds, 1e-6)

    @property
    def seconds_left(self) -> float | None:
        rate = self.rate
        return self.remaining / rate if rate > 0 else None

    def summary(self) -> JsonObject:
        """The statistics under the keys of `summary.json`."""
        totals, estimate = self.totals, self.totals.rewards.estimate()
        return {
            "planned": self.planned,
            "episodes": totals.episodes,
            "remaining": self.remaining,
            "complete": self.remaining == 0,
            "scored": totals.rewards.n,
            "broken": totals.broken,
            "mean_reward": estimate.value if estimate else None,
            "reward_interval": estimate.interval if estimate else None,
            "stop_reasons": {name: n for name, n in sorted(totals.stop_reasons.items()) if n},
            "usage": {
                "prompt_tokens": totals.prompt_tokens,
                "completion_tokens": totals.completion_tokens,
                "cost": totals.cost,
            },
        }


@dataclass(frozen=True, slots=True)
class RunBudget:
    """Limits of a run; None means unlimited. The fields are documented in `CollectConfig`."""

    max_cost: float | None = None
    max_total_tokens: int | None = None
    max_time: float | None = None

    @property
    def limits_spending(self) -> bool:
        return self.max_cost is not None or self.max_total_tokens is not None

    def exhausted_reason(self, stats: RunStats, active: Sequence[Usage] = ()) -> str | None:
        """Why the budget allows no further episode; None if it does.

        `active` is the usage so far of the episodes in progress. Each is expected to use as much as
        the mean episode, or what it has used already, if more.
        """
        if self.max_time is not None and stats.seconds >= self.max_time:
            return f"the time limit of {self.max_time:g} s is used up"

        def exceeds(limit: float | None, price: Callable[[Usage], float]) -> bool:
            """Whether all active episodes, and one more, would use more than the limit."""
            if limit is None:
                return False
            spent = price(stats.usage_before) + price(stats.usage_now)
            mean = spent / stats.costed_attempts if stats.costed_attempts else 0.0
            return spent + mean + sum(max(mean, price(usage)) for usage in active) > limit

        if exceeds(self.max_cost, lambda usage: usage.cost or 0.0):
            return f"the cost limit of ${self.max_cost:g} is used up"
        if exceeds(self.max_total_tokens, lambda usage: usage.total_tokens):
            return f"the token limit of {self.max_total_tokens:,} is used up"
        return None

    def max_active(self, stats: RunStats) -> float:
        """Maximum number of episodes in progress.

        The shortest episodes end first, so that the mean cost is underestimated at the beginning:
        concurrency grows with the number of episodes that have ended.
        """
        return INITIAL_CONCURRENCY + stats.costed_attempts if self.limits_spending else float("inf")


def summarize_run(folder: RunFolder, *, verify: bool = False) -> JsonObject:
    """The statistics in `summary.json`, brought up to date.

    A run that was killed, or that is in progress, has more episodes than its summary: then the
    journal is read. With `verify` the journal is also checked against the summary's checksum.
    """
    path = folder.episodes_path
    size = path.stat().st_size if path.exists() else 0
    summary = folder.read_summary()
    checksum = Checksum.from_summary(summary)
    if summary.get("bytes") == size and (
        not verify or not size or Checksum.of_file(path) == checksum
    ):
        return summary
    is_collected = folder.metadata.kind == "collect"
    # Episodes of imported and rescored runs keep the ids that they had before.
    run = folder.metadata.digest if is_collected else None
    index = read_resume_index(path, run=run, checksum=checksum) if size else ResumeIndex()
    recorded = index.totals.episodes
    planned = max(summary.get("planned", 0), recorded)
    stats = RunStats.from_index(index, planned)
    if not is_collected:
        stats.remaining = planned - recorded
    return {**stats.summary(), **describe_journal(index, size)}


def describe_journal(index: ResumeIndex, size: int) -> dict[str, int]:
    """Length and checksum of the journal, which reveal a change of it."""
    checksum = index.checksum
    if checksum is None:
        return {"bytes": size}
    return {"bytes": checksum.size, "crc32": checksum.crc32}
