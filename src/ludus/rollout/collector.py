"""Plays many episodes at once, and loses none: schedule, retry, budget, resume.

How one episode is played is the loop's business; what is written and read back is the journal's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from ludus.agents.agent import Agent
from ludus.data.episode import Episode, Usage
from ludus.data.journal import Journal
from ludus.data.run import RunFolder
from ludus.data.tools import JsonObject
from ludus.errors import RunError, StoppedEarly
from ludus.rollout.activity import Activity
from ludus.rollout.attempts import Attempts, wait
from ludus.rollout.breaker import Breaker
from ludus.rollout.budget import Budget
from ludus.rollout.job import Job
from ludus.rollout.places import Place
from ludus.rollout.plan import Plan
from ludus.rollout.progress import DecodeMeter, seconds_left
from ludus.rollout.reporter import Reporter
from ludus.rollout.review import length_of
from ludus.rollout.sessions import SessionPool
from ludus.rollout.tally import Tally
from ludus.rollout.tuning import Tuning
from ludus.rollout.watchdog import Watchdog

TICK = 0.25
SUMMARY_EVERY = 10.0
READY = 32
"""Episodes that may wait for their turn to call the model."""
GRACE = 30.0
"""Seconds that episodes under way still get when the time is used up."""


class Collector:
    """One start of one run."""

    def __init__(
        self,
        job: Job,
        agent: Agent,
        folder: RunFolder,
        plan: Plan,
        places: Mapping[str, Place],
        *,
        tally: Tally,
        todo: Iterator[int],
        tuning: Tuning,
        budget: Budget,
        reporter: Reporter,
    ) -> None:
        self.job = job
        self.agent = agent
        self.folder = folder
        self.tally = tally
        self.tuning = tuning
        self.meter = DecodeMeter(lambda: agent.sampled_tokens)
        self.stopped: str | None = None
        """Why it ended before everything was played, if it did."""
        self.activities: dict[str, Activity] = {}
        self._plan = plan
        self._todo = todo
        self._budget = budget
        self._reporter = reporter
        self._pools = {
            spec: SessionPool(place.endpoint, patience=tuning.patience)
            for spec, place in places.items()
        }
        self._breaker = Breaker(played=tally.totals.scored > 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unbegun = 0
        """Episodes that were given a task, which has not run yet."""
        self._freed = asyncio.Event()
        self._ending = asyncio.Event()
        self._attempts = Attempts(
            agent, job.limits, job.system_prompt, tuning, self.activities, tally.attempted,
            self._ending,
        )  # fmt: skip
        self._failed: RunError | None = None

    @property
    def seconds_left(self) -> float | None:
        """An estimate: from the tokens of a local model, else from the episodes that have ended."""
        tally = self.tally
        if self.meter.tokens is None:
            return tally.seconds_left
        return seconds_left(
            self.meter, self.job.limits,
            waiting=max(0, tally.left - tally.active), active=tally.active,
            finished=tally.fresh, finished_tokens=tally.spent_now.completion_tokens,
        )  # fmt: skip

    @property
    def waiting_for(self) -> str | None:
        """The server that nobody can reach just now, if there is one."""
        for pool in self._pools.values():
            if pool.waiting_since is not None:
                return pool.endpoint.spec
        return None

    @property
    def room(self) -> int:
        """How many episodes may be under way just now.

        More than the model takes calls: some are always with their environment or waiting to try
        again, and a call that ends finds another one ready.
        """
        level = self.agent.level
        return self.tuning.concurrency if level is None else level + min(level, READY)

    def drain(self, why: str) -> None:
        """Begin no further episode; those under way are finished."""
        self.stopped = self.stopped or why
        self._ending.set()
        self._freed.set()

    def abort(self, why: str) -> None:
        """Stop at once; what is under way will be played again when the run goes on."""
        self.drain(why)
        for task in self._tasks:
            task.cancel()

    async def run(self, journal: Journal) -> None:
        """Play all that is left to do. Raises `StoppedEarly` when nothing works any more."""
        self._journal = journal
        self.write_summary()
        self._reporter.begin(self)
        dog = Watchdog(
            self.activities,
            self._reporter.warn,
            patience=self.tuning.hang_warning,
            excused=lambda: self.agent.excused,
        )
        with dog:
            ticking = asyncio.create_task(self._tick(dog))
            try:
                await self._play_all()
            finally:
                ticking.cancel()
                await self._settle()
        if self._failed is not None:
            raise self._failed
        if self._breaker.why is not None:
            raise StoppedEarly(f"{self._breaker.why.rstrip('.')}. {self._rest()}")

    def _rest(self) -> str:
        return (
            f"{self.tally.totals.episodes:,} of {self.tally.planned:,} episodes are recorded in "
            f"{self.folder.path}; the same command goes on with the rest."
        )

    async def _play_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index in self._todo:
                if not await self._room():
                    break
                task = group.create_task(self._episode(index))
                self._tasks.add(task)
                self.tally.active += 1
                self._unbegun += 1
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.tally.active -= 1
        self._freed.set()

    async def _room(self) -> bool:
        """Wait until another episode may begin; False when none should."""
        while self.stopped is None:
            spent = self._budget.reached(self.tally, self._under_way())
            if spent is not None:
                self.drain(spent)
                break
            if self.tally.active < min(self.room, self._budget.room(self.tally)):
                return True
            self._freed.clear()
            await wait(self._freed, TICK)
        return False

    def _under_way(self) -> list[Usage]:
        """What each episode under way has used; only budgets want to know."""
        if not self._budget.limits_spending:
            return []
        begun = [activity.usage for activity in self.activities.values()]
        return begun + [Usage()] * self._unbegun

    async def _episode(self, index: int) -> None:
        self._unbegun -= 1
        assignment = self._plan[index]
        episode = await self._attempts.episode(assignment, self._pools[self._plan.spec_of(index)])
        if episode is not None:
            self._record(episode)
        self._breaker.ended(assignment.episode_id)
        if self._breaker.why is not None:
            self.abort("nothing works any more")

    def _record(self, episode: Episode) -> None:
        if not episode.broken:
            for held in self._breaker.succeeded():
                self._write(held)
            self._write(episode)
            return
        self._breaker.failed(episode, self.activities)

    def _write(self, episode: Episode) -> None:
        line = episode.as_line()
        try:
            self._journal.append(line)
        except RunError as error:
            self._failed = error
            self.abort("the journal cannot be written")
            return
        self.tally.add(episode, line)

    async def _settle(self) -> None:
        """Write what is still held back, and give everything back."""
        if self.stopped is None:
            for held in self._breaker.finished():
                self._write(held)
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        if self.tally.left == 0:
            self.stopped = None
        self.write_summary()

    def summary(self) -> JsonObject:
        """For `summary.json`, with the length and the checksum of the journal."""
        return {
            **self.tally.summary(),
            "seconds": round(self.tally.seconds, 3),
            "stopped": self.stopped,
            **length_of(self.tally.recorded, self.folder.episodes.stat().st_size),
        }

    def write_summary(self) -> None:
        """A summary that cannot be written costs no episode: `ludus runs` makes it again."""
        try:
            self.folder.write_summary(self.summary())
        except RunError as error:
            self._reporter.warn(str(error))

    async def _tick(self, dog: Watchdog) -> None:
        """What has to happen now and then, whatever the episodes do."""
        beats = 0
        while True:
            await asyncio.sleep(TICK)
            dog.beat()
            beats += 1
            if beats % round(SUMMARY_EVERY / TICK) == 0:
                await asyncio.to_thread(self.write_summary)
            limit = self._budget.max_time
            if limit is not None and self.tally.seconds > limit + GRACE and self._tasks:
                self.abort(f"--max-time {limit:g} s is used up")
