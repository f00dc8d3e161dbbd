"""Continuous batching: requests get a cache slot as one becomes free, and leave when they finish.

`model_runner` computes the tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from ludus.policy.engine.engine_api import (
    DeliverCompletion,
    IsWanted,
    PollRequests,
    Request,
    SampledSequence,
)
from ludus.policy.triton_engine.batch_state import MAX_STEPS_PER_FETCH, RowState, StepOutput
from ludus.policy.triton_engine.model_runner import ModelRunner


@dataclass(slots=True)
class _ScheduledRequest(SampledSequence):
    """A request that waits or runs."""

    slot: int = -1
    is_wanted: bool = True

    @property
    def max_length(self) -> int:
        return self.length + self.tokens_left

    @property
    def row_state(self) -> RowState:
        sampling = self.request.sampling
        return RowState(
            token=(self.ids or self.request.ids)[-1],
            position=self.length - 1,
            slot=self.slot,
            # Wrapped into the range of a signed 64-bit integer.
            seed=(self.request.seed + 2**63) % 2**64 - 2**63,
            tokens_left=self.tokens_left,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or 0,
            stops=tuple(self.request.stop_token_ids),
        )


@dataclass(slots=True)
class Scheduler:
    """Running requests, and requests that wait for a slot."""

    _runner: ModelRunner
    _context_length: int | None
    _deliver: DeliverCompletion
    _is_wanted: IsWanted
    _poll_requests: PollRequests
    _num_requests: int = 0
    _waiting: deque[_ScheduledRequest] = field(default_factory=deque)
    _running: list[_ScheduledRequest] = field(default_factory=list)
    """Running requests, in the order of the batch on the device."""
    _joining: list[_ScheduledRequest] = field(default_factory=list)
    """Requests admitted while steps run; they join the next steps."""
    _output: tuple[list[_ScheduledRequest], StepOutput] | None = None
    """Rows and tokens of the last steps, until they are delivered."""

    def run(self, requests: Sequence[Request]) -> None:
        """Answer these requests and new ones of `poll_requests`.

        Work that the next steps do not depend on is done while the device runs them.
        """
        self._enqueue(requests)
        try:
            while self._waiting or self._running or self._joining:
                launched = self._launch_steps()
                self._deliver_output()
                capacity = self._runner.max_batch - len(self._running) - len(self._waiting)
                self._enqueue(self._poll_requests(max(0, capacity)))
                self._admit()
                if launched:
                    self._output = self._running, self._runner.fetch_output()
        except BaseException:
            self._runner.synchronize()
            # The contents of their slots are unknown now and must not be reused.
            self._runner.prefix_cache.clear()
            self._deliver_output()
            raise

    def _enqueue(self, requests: Sequence[Request]) -> None:
        for request in requests:
            max_new_tokens = request.max_new_tokens(self._context_length)
            row = _ScheduledRequest(self._num_requests, request, max_new_tokens)
            self._num_requests += 1
            if row.tokens_left > 0:
                self._waiting.append(row)
            else:
                self._deliver(row.index, row.completion)

    def _admit(self) -> None:
        """Start as many waiting requests as fit, first come first served."""
        self._waiting = deque(row for row in self._waiting if self._is_wanted(row.index))
        if not self._waiting:
            return
        runner = self._runner
        longest = max(row.max_length for row in self._waiting)
        runner.ensure_capacity(longest)
        candidates = list(self._waiting)[: runner.max_batch - len(self._running)]
        # Stop at the first that is too long for the slots: nobody overtakes it.
        fitting = takewhile(lambda row: row.max_length <= runner.cache.slot_length, candidates)
        leases = runner.admit([row.request.ids for row in fitting])
        for lease in leases:
            row = self._waiting.popleft()
            row.slot = lease.slot
            self._joining.append(row)
        if not self._running and not self._joining:
            raise RuntimeError(
                f"the KV cache has no room for {longest} tokens, although nothing else is running"
            )

    def _launch_steps(self) -> bool:
        """Launch a few decoding steps of all unfinished requests; False if there are none."""
        joining, self._joining = self._joining, []
        tokens_left = [row.tokens_left for row in (*self._running, *joining)]
        if self._output is not None:
            rows, output = self._output
            tokens_left = [*output.tokens_left.tolist(), *(row.tokens_left for row in joining)]
            kept = [at for at, row in enumerate(rows) if tokens_left[at] and row.is_wanted]
            if joining or len(kept) < len(rows):
                self._runner.load_batch([row.row_state for row in joining], kept)
                self._running = [*(rows[at] for at in kept), *joining]
        elif joining:
            self._runner.load_batch([row.row_state for row in joining])
            self._running = joining
        if not self._running:
            return False
        self._runner.launch_steps(min(MAX_STEPS_PER_FETCH, max(tokens_left)))
        return True

    def _deliver_output(self) -> None:
        """Add the fetched tokens to their requests, and deliver the finished ones."""
        if self._output is None:
            return
        (rows, output), self._output = self._output, None
        for row, count, ids, logprobs in zip(
            rows, output.counts.tolist(), output.ids.T.tolist(), output.logprobs.T.tolist(),
            strict=True,
        ):  # fmt: skip
            row.append(ids[:count], logprobs[:count])
            row.report_tokens()
        self._runner.stats.sampled_tokens += int(output.counts.sum())
        running = set(map(id, self._running))
        for row in rows:
            if id(row) in running:
                row.is_wanted = self._is_wanted(row.index)
                continue
            # The slot lacks the keys of the last id, which was not fed yet.
            cached_ids = [*row.request.ids, *row.ids][:-1]
            self._runner.prefix_cache.release(row.slot, cached_ids)
            if row.is_finished:
                self._deliver(row.index, row.completion)
