"""Runs a model on its device: KV cache, prefix cache, batch state, prefill and decoding steps.

Batches are padded to a few fixed sizes, for which CUDA graphs are captured. `scheduler` decides
which requests run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ludus.policy.engine.engine_api import DecodeStats
from ludus.policy.engine.sampling import min_kept_logit
from ludus.policy.triton_engine.batch_state import (
    MIN_LOGIT,
    POSITION,
    SLOT,
    TEMPERATURE,
    TOKEN,
    TOP_K,
    TOP_P,
    BatchState,
    PinnedBuffer,
    RowState,
    StepOutput,
)
from ludus.policy.triton_engine.cuda_graphs import (
    CudaGraphRunner,
    NoGraphRunner,
    graph_launch_sizes,
    graph_size,
)
from ludus.policy.triton_engine.kv_cache import KVCache
from ludus.policy.triton_engine.llama_forward import LlamaForward
from ludus.policy.triton_engine.prefix_cache import Lease, PrefixCache

BATCH_SIZES = (1, 8, 32, 64, 128, 256, 512, 1024)
"""Rows of a decoding step; a batch is padded to the next size. Every size needs its own graphs,
and capturing them takes longer than running a few padding rows."""
MAX_QUEUED_PREFILLS = 8
"""Prefill passes that are launched without waiting for the first of them."""
PREFILL_SIZES = (64, 256, 512, 1024, 2048)
"""Prompt tokens of one prefill pass, padded likewise."""
TARGET_PROGRAMS = 264
"""Programs of the attention kernel, two per multiprocessor of a large GPU. Batches that have fewer
split long sequences over several programs."""
MIN_SPLIT_TOKENS = 256
"""Shorter pieces of a sequence are not split further."""


class ModelRunner:
    """Owns everything on the device, and launches all work there."""

    def __init__(self, model: LlamaForward, cache: KVCache, *, max_batch: int) -> None:
        self.max_batch = min(max_batch, BATCH_SIZES[-1])
        self.cache = cache
        self.prefix_cache = PrefixCache()
        self.stats = DecodeStats()
        self._model = model
        self._device = model.weights.device
        self._graphs = CudaGraphRunner() if self._device.type == "cuda" else NoGraphRunner()
        self._batch = self._build_batch(stops=8)
        self._counts_are_zero = False
        self._prefill_buffer = PinnedBuffer(
            3 * PREFILL_SIZES[-1], self._device, host_arrays=MAX_QUEUED_PREFILLS
        )
        self._needs_filter: list[bool] = []
        """For each row, whether top_k or top_p restricts its tokens."""
        self._padded_rows = 0

    def ensure_capacity(self, length: int) -> None:
        """Allocate slots of at least that length, as far as memory and use allow."""
        cache = self.cache
        if cache.num_slots and length <= cache.slot_length:
            return
        num_slots, slot_length = cache.plan_size(self.max_batch, length)
        if num_slots < cache.num_slots:
            # Longer slots mean fewer of them; wait until none is in use.
            if self.prefix_cache.num_free < cache.num_slots:
                return
            self.free_cache()
        self.synchronize()  # Steps that are running use the graphs.
        self._graphs.clear()
        cache.resize(num_slots, slot_length)
        self.prefix_cache.resize(num_slots, slot_length)

    def free_cache(self) -> None:
        self._graphs.clear()
        self.cache.free()
        self.prefix_cache = PrefixCache()

    def synchronize(self) -> None:
        """Wait for launched work after an error: it may still use the buffers."""
        if self._device.type == "cuda":
            # A device in an error state raises here; it raises again at the next use.
            with suppress(RuntimeError):
                torch.cuda.current_stream(self._device).synchronize()

    def admit(self, prompts: Sequence[tuple[int, ...]]) -> list[Lease]:
        """Lease slots for as many prompts as possible, and prefill all but their last tokens."""
        self.prefix_cache.begin_round()
        leases: list[Lease] = []
        for ids in prompts:
            lease = self.prefix_cache.lease(ids)
            if lease is None:
                break
            leases.append(lease)
        leased = list(zip(leases, prompts, strict=False))
        try:
            for wave in sorted({lease.wave for lease in leases}):
                self._prefill_wave([pair for pair in leased if pair[0].wave == wave])
        except BaseException:
            # The prefix cache already lists these prompts, but they may not have been computed.
            for lease in leases:
                self.prefix_cache.release(lease.slot, ())
            raise
        return leases

    def _prefill_wave(self, leased: Sequence[tuple[Lease, tuple[int, ...]]]) -> None:
        """Prefill prompts whose shared prefixes are cached by now: copy these, compute the rest."""
        copies = [
            (lease.copy_from, lease.slot) for lease, _ in leased if lease.copy_from is not None
        ]
        if copies:
            length = max(lease.num_cached for lease, _ in leased if lease.copy_from is not None)
            self.cache.copy_prefixes(copies, length)
        columns = []
        for lease, ids in leased:
            # The first decoding step computes the last token.
            columns.append(
                self._model.prompt_rows(ids[:-1], lease.slot, self.cache, start=lease.num_cached)
            )
        joined = np.concatenate(columns, axis=1)  # [3, tokens]: tokens, slots and positions.
        for start in range(0, joined.shape[1], PREFILL_SIZES[-1]):
            chunk = joined[:, start : start + PREFILL_SIZES[-1]]
            number = chunk.shape[1]
            size = graph_size(number, PREFILL_SIZES)
            self._prefill_buffer.next()
            padded = self._prefill_buffer.host_array[: 3 * size].reshape(3, size)
            padded[:, number:] = self.cache.padding_row
            padded[:, :number] = chunk
            self._prefill_buffer.upload(0, 3 * size)
            tokens, slots, positions = self._prefill_buffer.device_tensor[: 3 * size].view(3, size)
            work = partial(self._model.prefill, tokens, slots, positions, self.cache)
            self._graphs.run(("prefill", size), work)
        self.stats.prefilled_tokens += sum(len(ids) - lease.num_cached for lease, ids in leased)
        self.stats.reused_tokens += sum(lease.num_cached for lease, _ in leased)

    def load_batch(self, added: Sequence[RowState], kept: Sequence[int] = ()) -> None:
        """Keep these rows of the batch, by their positions, and add others behind them."""
        most_stops = max((len(row.stops) for row in added), default=0)
        if most_stops > self._batch.stops.shape[1]:
            self._graphs.clear()
            self._batch = self._batch.with_stops(1 << (most_stops - 1).bit_length())
        self._batch.load(added, scratch_slot=self.cache.scratch_slot, kept=kept)
        self._needs_filter = [self._needs_filter[row] for row in kept]
        self._needs_filter += [row.needs_filter for row in added]
        self._padded_rows = graph_size(len(self._needs_filter), BATCH_SIZES)
        self._counts_are_zero = True

    def launch_steps(self, steps: int) -> None:
        """Launch this many decoding steps, or one more, without waiting for them.

        Rows that finish on the way stay as they are.
        """
        if not self._counts_are_zero:
            self._batch.reset_counts()
        self._counts_are_zero = False
        # Programs per sequence, a power of two. Depends on the slots' length, not on the
        # sequences', so that graphs stay valid as they grow.
        programs = self._padded_rows * self._model.shape.num_kv_heads
        most = min(TARGET_PROGRAMS // programs, self.cache.slot_length // MIN_SPLIT_TOKENS, 32)
        splits = 1 << max(0, most.bit_length() - 1)
        if any(self._needs_filter):
            for _ in range(steps):
                logits = self._graphs.run(
                    ("logits", self._padded_rows, splits), partial(self._logits, splits)
                )
                # Sorting the vocabulary is torch's, and not in a graph.
                sampling = self._batch.sampling[:, : self._padded_rows]
                top_k = self._batch.state[TOP_K, : self._padded_rows]
                sampling[MIN_LOGIT] = min_kept_logit(
                    logits, sampling[TEMPERATURE], sampling[TOP_P], top_k
                )
                self._model.operations.sample(logits, self._batch)
            return
        for number in graph_launch_sizes(steps):

            def run_steps(number: int = number) -> None:
                for _ in range(number):
                    self._model.operations.sample(self._logits(splits), self._batch)

            self._graphs.run(("steps", number, self._padded_rows, splits), run_steps)

    def fetch_output(self) -> StepOutput:
        """Wait for the launched steps, and return their tokens."""
        return self._batch.fetch(len(self._needs_filter))

    def _logits(self, splits: int) -> Tensor:
        state = self._batch.state[:, : self._padded_rows]
        return self._model.decode(
            state[TOKEN], state[SLOT], state[POSITION], self.cache, splits=splits
        )

    def _build_batch(self, *, stops: int) -> BatchState:
        capacity = graph_size(self.max_batch, BATCH_SIZES)
        return BatchState(capacity, stops=stops, device=self._device)
