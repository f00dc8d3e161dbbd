"""One run of the engine: requests take slots as they come free, and leave as they end.

It knows rows by what was asked for and what was said; how tokens come about is
`ludus.policy.triton_engine.model_runner`'s business.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ludus.policy.engine.engine_api import (
    Completion,
    DeliverCompletion,
    IsWanted,
    PollRequests,
    Request,
)
from ludus.policy.triton_engine.batch_state import MAX_STEPS_PER_FETCH, RowState, StepOutput
from ludus.policy.triton_engine.counter_rng import to_int64
from ludus.policy.triton_engine.model_runner import ModelRunner


@dataclass(slots=True)
class _RunningRequest:
    """One request while it is being answered."""

    index: int
    request: Request
    tokens_left: int
    slot: int = -1
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.request.ids) + len(self.ids)

    @property
    def max_length(self) -> int:
        return self.length + self.tokens_left

    @property
    def hit_stop(self) -> bool:
        return bool(self.ids) and self.ids[-1] in self.request.stop_token_ids

    @property
    def is_finished(self) -> bool:
        return self.tokens_left <= 0 or self.hit_stop

    @property
    def cached_ids(self) -> list[int]:
        """The ids whose keys its slot holds: the last has been chosen, and not read yet."""
        return [*self.request.ids, *self.ids][:-1]

    @property
    def output(self) -> Completion:
        return Completion(tuple(self.ids), tuple(self.logprobs), self.hit_stop)

    @property
    def row_state(self) -> RowState:
        how = self.request.sampling
        return RowState(
            token=(self.ids or self.request.ids)[-1],
            position=self.length - 1,
            slot=self.slot,
            seed=to_int64(self.request.seed),
            tokens_left=self.tokens_left,
            temperature=how.temperature,
            top_p=how.top_p,
            top_k=how.top_k or 0,
            stops=tuple(self.request.stop_token_ids),
        )

    def append(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        if not all(map(math.isfinite, logprobs)):
            raise ValueError("the model's logits are no numbers; load it in another dtype")
        self.ids += ids
        self.logprobs += logprobs
        self.tokens_left -= len(ids)


class Scheduler:
    """Rows at work, and requests that wait for a slot."""

    def __init__(
        self,
        runner: ModelRunner,
        *,
        budget: Callable[[Request], int],
        deliver: DeliverCompletion,
        wanted: IsWanted,
        more: PollRequests,
    ) -> None:
        self._runner = runner
        self._budget = budget
        self._deliver, self._wanted, self._more = deliver, wanted, more
        self._num_requests = 0
        self._waiting: deque[_RunningRequest] = deque()
        self._running: list[_RunningRequest] = []
        self._finished: list[_RunningRequest] = []
        self._batch_changed = False

    def run(self, requests: Sequence[Request]) -> None:
        self._enqueue(requests)
        try:
            while self._waiting or self._running:
                self._admit()
                if self._running:
                    self._step()
                self._enqueue(self._more(self._capacity_left))
        except BaseException:
            self._runner.synchronize()
            # Nobody knows now what their slots hold.
            for row in self._running:
                self._runner.prefix_cache.release(row.slot, ())
            raise
        finally:
            self._deliver_finished()

    @property
    def _capacity_left(self) -> int:
        return max(0, self._runner.max_batch - len(self._running) - len(self._waiting))

    def _enqueue(self, requests: Sequence[Request]) -> None:
        for request in requests:
            row = _RunningRequest(self._num_requests, request, self._budget(request))
            self._num_requests += 1
            if row.tokens_left > 0:
                self._waiting.append(row)
            else:
                self._deliver(row.index, row.output)

    def _admit(self) -> None:
        """Let in whoever there is room for, in the order in which they came."""
        self._waiting = deque(row for row in self._waiting if self._wanted(row.index))
        if not self._waiting:
            return
        machine = self._runner
        longest = max(row.max_length for row in self._waiting)
        machine.ensure_capacity(len(self._running) + len(self._waiting), longest)
        room = machine.max_batch - len(self._running)
        due = list(self._waiting)[:room]
        fits = [row.max_length <= machine.cache.slot_length for row in due]
        due = due[: fits.index(False)] if False in fits else due
        leases = machine.admit([row.request.ids for row in due])
        for lease in leases:
            row = self._waiting.popleft()
            row.slot = lease.slot
            self._running.append(row)
        self._batch_changed = self._batch_changed or bool(leases)
        if not self._running:
            raise RuntimeError(
                f"there is no room for {longest} tokens, though nothing else is being decoded"
            )

    def _step(self) -> None:
        """A few steps for all rows, and out with those that have ended."""
        if self._batch_changed:
            self._runner.load_batch([row.row_state for row in self._running])
            self._batch_changed = False
        self._runner.launch_steps(
            min(MAX_STEPS_PER_FETCH, max(row.tokens_left for row in self._running))
        )
        # What wakes others up comes when the device has something to do.
        self._deliver_finished()
        self._apply_output(self._runner.fetch_output())

    def _deliver_finished(self) -> None:
        ended, self._finished = self._finished, []
        for row in ended:
            self._deliver(row.index, row.output)

    def _apply_output(self, look: StepOutput) -> None:
        for row, count, ids, logprobs in zip(
            self._running, look.counts, look.ids, look.logprobs, strict=True
        ):
            row.append(ids[:count], logprobs[:count])
        self._runner.stats.sampled_tokens += sum(look.counts)
        staying = []
        for row in self._running:
            if row.is_finished or not self._wanted(row.index):
                self._runner.prefix_cache.release(row.slot, row.cached_ids)
                if row.is_finished:
                    self._finished.append(row)
            else:
                staying.append(row)
        self._batch_changed = self._batch_changed or len(staying) < len(self._running)
        self._running = staying
