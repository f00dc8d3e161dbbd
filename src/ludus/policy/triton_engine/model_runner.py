"""A model on its device: the cache, the slots, the rows of a batch, and the steps that move them.

It reads prompts and launches steps in the sizes that it has graphs for. Who asked for what, and
when a reply has ended, is `ludus.policy.triton_engine.scheduler`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ludus.policy.engine.decode_stats import DecodeStats
from ludus.policy.triton_engine.batch_state import (
    MIN_LOGIT,
    POSITION,
    SLOT,
    TEMPERATURE,
    TOKEN,
    TOP_K,
    TOP_P,
    BatchState,
    RowState,
    StepOutput,
)
from ludus.policy.triton_engine.cuda_graphs import CudaGraphRunner, EagerRunner
from ludus.policy.triton_engine.kv_cache import KVCache
from ludus.policy.triton_engine.llama_forward import LlamaForward
from ludus.policy.triton_engine.pinned_buffer import PinnedBuffer
from ludus.policy.triton_engine.prefix_cache import Lease, PrefixCache
from ludus.policy.triton_engine.top_k_top_p import min_kept_logit

BATCH_SIZES = (1, 8, 32, 64, 128, 256, 512, 1024)
"""Rows of a step; a batch is filled up to the next of them. Each costs graphs of its own, which
take longer to record than a few rows more take to run."""
PREFILL_SIZES = (64, 256, 512, 1024, 2048)
"""Tokens of prompts that are read at once, likewise."""
LONG_LAUNCH_STEPS, SHORT_LAUNCH_STEPS = 8, 2
"""Steps that are launched as one: most of what is decoded comes in many."""
SLOT_GROWTH_FACTOR = 4
"""How many times as many slots there are when there were too few."""
MIN_SLOT_GROWTH_FACTOR = 1.25
"""As many times more slots, where memory is short: it is never twice the same, and each time that
the cache grows every graph is forgotten."""
TARGET_PROGRAMS = 264
"""Two for each of a large GPU's processors: with fewer, long rows are shared between several."""
MIN_SPLIT_TOKENS = 256
"""Tokens below which a row is not worth sharing."""


class ModelRunner:
    """Everything that lies on the device, and the only one that launches work there."""

    def __init__(self, model: LlamaForward, cache: KVCache, *, max_batch: int) -> None:
        self.max_batch = min(max_batch, BATCH_SIZES[-1])
        self.cache = cache
        self.prefix_cache = PrefixCache()
        self.stats = DecodeStats()
        self._model = model
        self._device = model.weights.device
        self._graphs = CudaGraphRunner() if self._device.type == "cuda" else EagerRunner()
        self._expected = 1, 1
        self._batch = self._build_batch(8)
        self._counts_are_zero = False
        self._prefill_buffer = PinnedBuffer(3 * PREFILL_SIZES[-1], self._device)
        self._row_states: Sequence[RowState] = ()
        self._padded_rows = 0

    def reserve_capacity(self, rows: int, length: int) -> None:
        """What to make room for at once: to grow later costs every graph."""
        self._expected = rows, length

    def ensure_capacity(self, number: int, length: int) -> None:
        """See to it that there are so many slots, and as long, if memory and those at work let."""
        slots, now = min(number, self.max_batch), self.cache
        if slots <= now.num_slots and length <= now.slot_length:
            return
        rows, long = self._expected
        wanted = now.num_slots
        if slots > now.num_slots:
            wanted = min(self.max_batch, max(slots, rows, SLOT_GROWTH_FACTOR * now.num_slots))
        found, length = now.plan_size(wanted, max(length, long, now.slot_length))
        if length <= now.slot_length and found < min(
            wanted, MIN_SLOT_GROWTH_FACTOR * now.num_slots
        ):
            return
        if found < now.num_slots:
            # Those that would go may be in use; whoever needs longer ones waits until none is.
            if self.prefix_cache.num_free < now.num_slots:
                return
            self.free_cache()
        self._graphs.clear()
        now.resize(found, length)
        self.prefix_cache.resize(found, length)

    def free_cache(self) -> None:
        """Give the cache back."""
        self._graphs.clear()
        self.cache.free()
        self.prefix_cache = PrefixCache()

    def synchronize(self) -> None:
        """After an error: wait until nothing is under way that still reads what is here."""
        import torch

        if self._device.type == "cuda":
            # What is broken for good says so again when it is used next.
            with suppress(RuntimeError):
                torch.cuda.current_stream(self._device).synchronize()

    def admit(self, prompts: Sequence[tuple[int, ...]]) -> list[Lease]:
        """A slot for each, as far as there are any, with all but the last token read."""
        self.prefix_cache.begin_round()
        leases: list[Lease] = []
        for ids in prompts:
            lease = self.prefix_cache.lease(ids)
            if lease is None:
                break
            leases.append(lease)
        placed = list(zip(leases, prompts, strict=False))
        try:
            for wave in sorted({lease.wave for lease in leases}):
                self._prefill_wave([pair for pair in placed if pair[0].wave == wave])
        except BaseException:
            # Noted as read, though it may not have been: nobody may find anything there.
            for lease in leases:
                self.prefix_cache.release(lease.slot, ())
            raise
        return leases

    def _prefill_wave(self, placed: Sequence[tuple[Lease, tuple[int, ...]]]) -> None:
        copies = [
            (lease.copy_from, lease.slot) for lease, _ in placed if lease.copy_from is not None
        ]
        if copies:
            longest = max(lease.num_cached for lease, _ in placed if lease.copy_from is not None)
            self.cache.copy_prefixes([(a, b) for a, b in copies], longest)
        parts = [_prompt_columns(ids, lease) for lease, ids in placed]
        self._prefill(np.concatenate(parts, axis=1))
        # The last token of each is read by the first step.
        self.stats.prefilled_tokens += sum(part.shape[1] + 1 for part in parts)
        self.stats.reused_tokens += sum(lease.num_cached for lease, _ in placed)

    def _prefill(self, tokens: Any) -> None:
        for start in range(0, tokens.shape[1], PREFILL_SIZES[-1]):
            piece = tokens[:, start : start + PREFILL_SIZES[-1]]
            number = piece.shape[1]
            size = _padded_size(number, PREFILL_SIZES)
            self._prefill_buffer.wait()
            padded = self._prefill_buffer.host_array[: 3 * size].reshape(3, size)
            padded[:, number:] = [[0], [self.cache.scratch_slot], [0]]
            padded[:, :number] = piece
            self._prefill_buffer.upload(0, 3 * size)
            self._graphs.run(("read", size), partial(self._prefill_pass, size))

    def _prefill_pass(self, size: int) -> None:
        tokens, slots, positions = self._prefill_buffer.device_tensor[: 3 * size].view(3, size)
        self._model.prefill(tokens, slots, positions, self.cache)

    def load_batch(self, lines: Sequence[RowState]) -> None:
        """These are the rows from now on."""
        most = max(len(line.stops) for line in lines)
        if most > self._batch.stops.shape[1]:
            self._graphs.clear()
            self._batch = self._build_batch(1 << (most - 1).bit_length())
        self._batch.load(lines, scratch_slot=self.cache.scratch_slot)
        self._row_states, self._padded_rows, self._counts_are_zero = (
            lines,
            _padded_size(len(lines)),
            True,
        )

    def launch_steps(self, steps: int) -> None:
        """Launch so many steps, or one more, and wait for nothing; who has ended stays as it is."""
        if not self._counts_are_zero:
            self._batch.reset_counts()
        self._counts_are_zero = False
        splits = self._num_splits()
        if any(line.needs_filter for line in self._row_states):
            for _ in range(steps):
                self._run_filtered_step(splits)
            return
        for number in _launch_sizes(steps):
            work = partial(self._run_steps, number, splits)
            self._graphs.run(("steps", number, self._padded_rows, splits), work)

    def fetch_output(self) -> StepOutput:
        """Wait for the steps launched, and see what came of them."""
        return self._batch.fetch(len(self._row_states))

    def _run_steps(self, number: int, splits: int) -> None:
        for _ in range(number):
            self._model.operations.sample(self._logits(splits), self._batch)

    def _run_filtered_step(self, splits: int) -> None:
        """To sort the vocabulary is no kernel of ours, so that part is launched as it is."""
        logits = self._graphs.run(
            ("logits", self._padded_rows, splits), partial(self._logits, splits)
        )
        heat, state = (
            each[:, : self._padded_rows] for each in (self._batch.sampling, self._batch.state)
        )
        heat[MIN_LOGIT] = min_kept_logit(logits, heat[TEMPERATURE], heat[TOP_P], state[TOP_K])
        self._model.operations.sample(logits, self._batch)

    def _logits(self, splits: int) -> Any:
        state = self._batch.state[:, : self._padded_rows]
        where = state[TOKEN], state[SLOT], state[POSITION]
        return self._model.decode(*where, self.cache, splits=splits)

    def _num_splits(self) -> int:
        """Of each row, by how long it may become: what is long now would want other graphs soon."""
        heads = self._padded_rows * self._model.shape.num_kv_heads
        most = min(TARGET_PROGRAMS // heads, self.cache.slot_length // MIN_SPLIT_TOKENS, 32)
        return 1 << max(0, most.bit_length() - 1)

    def _build_batch(self, stops: int) -> BatchState:
        return BatchState(_padded_size(self.max_batch), stops=stops, device=self._device)


def _padded_size(number: int, sizes: Sequence[int] = BATCH_SIZES) -> int:
    return next(size for size in sizes if size >= number)


def _launch_sizes(steps: int) -> Iterator[int]:
    """In as few as can be, without more than one step in vain."""
    while steps > 0:
        number = LONG_LAUNCH_STEPS if steps >= LONG_LAUNCH_STEPS - 1 else SHORT_LAUNCH_STEPS
        yield number
        steps -= number


def _prompt_columns(ids: Sequence[int], lease: Lease) -> Any:
    """What has to be read of a prompt: tokens, slots and positions."""
    tokens = np.asarray(ids[lease.num_cached : -1], dtype=np.int64)
    slots = np.full(len(tokens), lease.slot)
    return np.stack([tokens, slots, np.arange(lease.num_cached, lease.num_cached + len(tokens))])
