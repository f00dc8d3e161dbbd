"""One run of the engine: requests take slots as they come free, and leave as they end.

It knows rows by what was asked for and what was said; how tokens come about is
`ludus.policy.fast.machine`'s business.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ludus.policy.fast.machine import Machine
from ludus.policy.fast.noise import folded
from ludus.policy.fast.rows import STEPS, Line, Look
from ludus.policy.requests import Deliver, More, Request, Sampled, Wanted


@dataclass(slots=True)
class _Row:
    """One request while it is being answered."""

    at: int
    request: Request
    left: int
    slot: int = -1
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.request.ids) + len(self.ids)

    @property
    def need(self) -> int:
        return self.length + self.left

    @property
    def stopped(self) -> bool:
        return bool(self.ids) and self.ids[-1] in self.request.stops

    @property
    def ended(self) -> bool:
        return self.left <= 0 or self.stopped

    @property
    def known(self) -> list[int]:
        """The ids whose keys its slot holds: the last has been chosen, and not read yet."""
        return [*self.request.ids, *self.ids][:-1]

    @property
    def sampled(self) -> Sampled:
        return Sampled(tuple(self.ids), tuple(self.logprobs), self.stopped)

    @property
    def line(self) -> Line:
        how = self.request.sampling
        return Line(
            token=(self.ids or self.request.ids)[-1],
            position=self.length - 1,
            slot=self.slot,
            seed=folded(self.request.seed),
            left=self.left,
            temperature=how.temperature,
            top_p=how.top_p,
            top_k=how.top_k or 0,
            stops=tuple(self.request.stops),
        )

    def take(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        if not all(map(math.isfinite, logprobs)):
            raise ValueError("the model's logits are no numbers; load it in another dtype")
        self.ids += ids
        self.logprobs += logprobs
        self.left -= len(ids)


class Session:
    """Rows at work, and requests that wait for a slot."""

    def __init__(
        self,
        machine: Machine,
        *,
        budget: Callable[[Request], int],
        deliver: Deliver,
        wanted: Wanted,
        more: More,
    ) -> None:
        self._machine = machine
        self._budget = budget
        self._deliver, self._wanted, self._more = deliver, wanted, more
        self._asked = 0
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []
        self._ended: list[_Row] = []
        self._changed = False

    def run(self, requests: Sequence[Request]) -> None:
        self._ask(requests)
        try:
            while self._waiting or self._rows:
                self._admit()
                if self._rows:
                    self._advance()
                self._ask(self._more(self._room))
        except BaseException:
            self._machine.settle()
            # Nobody knows now what their slots hold.
            for row in self._rows:
                self._machine.slots.release(row.slot, ())
            raise
        finally:
            self._hand_over()

    @property
    def _room(self) -> int:
        return max(0, self._machine.max_batch - len(self._rows) - len(self._waiting))

    def _ask(self, requests: Sequence[Request]) -> None:
        for request in requests:
            row = _Row(self._asked, request, self._budget(request))
            self._asked += 1
            if row.left > 0:
                self._waiting.append(row)
            else:
                self._deliver(row.at, row.sampled)

    def _admit(self) -> None:
        """Let in whoever there is room for, in the order in which they came."""
        self._waiting = deque(row for row in self._waiting if self._wanted(row.at))
        if not self._waiting:
            return
        machine = self._machine
        longest = max(row.need for row in self._waiting)
        machine.prepare(len(self._rows) + len(self._waiting), longest)
        room = machine.max_batch - len(self._rows)
        due = list(self._waiting)[:room]
        fits = [row.need <= machine.cache.length for row in due]
        due = due[: fits.index(False)] if False in fits else due
        leases = machine.admit([row.request.ids for row in due])
        for lease in leases:
            row = self._waiting.popleft()
            row.slot = lease.slot
            self._rows.append(row)
        self._changed = self._changed or bool(leases)
        if not self._rows:
            raise RuntimeError(
                f"there is no room for {longest} tokens, though nothing else is being decoded"
            )

    def _advance(self) -> None:
        """A few steps for all rows, and out with those that have ended."""
        if self._changed:
            self._machine.load([row.line for row in self._rows])
            self._changed = False
        self._machine.advance(min(STEPS, max(row.left for row in self._rows)))
        # What wakes others up comes when the device has something to do.
        self._hand_over()
        self._take(self._machine.look())

    def _hand_over(self) -> None:
        ended, self._ended = self._ended, []
        for row in ended:
            self._deliver(row.at, row.sampled)

    def _take(self, look: Look) -> None:
        for row, count, ids, logprobs in zip(
            self._rows, look.counts, look.ids, look.logprobs, strict=True
        ):
            row.take(ids[:count], logprobs[:count])
        self._machine.stats.sampled += sum(look.counts)
        staying = []
        for row in self._rows:
            if row.ended or not self._wanted(row.at):
                self._machine.slots.release(row.slot, row.known)
                if row.ended:
                    self._ended.append(row)
            else:
                staying.append(row)
        self._changed = self._changed or len(staying) < len(self._rows)
        self._rows = staying
