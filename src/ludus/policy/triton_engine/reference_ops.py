"""The operations of a forward pass and of sampling in plain torch.

Used on a CPU, and to test the kernels of `TritonOps`. Norms carry no weight here, because it is
folded into the matrix that follows.

Random numbers are counter-based: each is a hash of a seed, a position and a token. So a completion
depends neither on its batch nor on the order of requests. `sampling_kernels` has the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ludus.policy.triton_engine.batch_state import (
    ACTIVE,
    MIN_LOGIT,
    NUM_NEW,
    POSITION,
    SEED,
    TEMPERATURE,
    TOKEN,
    TOKENS_LEFT,
    BatchState,
)
from ludus.policy.triton_engine.kv_cache import LayerCache
from ludus.policy.triton_engine.model_weights import ModelShape, PackedLayer

MASK_32 = 0xFFFFFFFF
GOLDEN_RATIO_32, SECOND_KEY_OFFSET = 0x9E3779B1, 0x85EBCA6B
MIX_MULTIPLIER_1, MIX_MULTIPLIER_2 = 0x7FEB352D, 0x846CA68B
"""Constants of the "lowbias32" integer hash."""
MAX_UNIFORM = 1 - 2.0**-24
SERIES_THRESHOLD = 0.01
"""Below it, -log(1 - u) is computed from its series: 1 - u would lose u's digits in float32."""


class ReferenceOps:
    """Each operation in plain torch, on any device."""

    prefill_chunk = 1
    """Prompt tokens that attend together: so many consecutive rows of a prefill are of one slot, or
    pad it."""

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, exact: bool = False
    ) -> Tensor:
        """x @ weight.T + bias; in float32 if `exact`, otherwise in the dtype of x."""
        out = functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
        return out if exact else out.to(x.dtype)

    def add_norm(
        self, x: Tensor, delta: Tensor | None, delta_norm: Tensor | None = None, *, eps: float,
        dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        """Add delta to x in place, after an RMSNorm with this weight, and return x / rms(x)."""
        if delta is not None:
            x += delta if delta_norm is None else _rms_norm(delta.float(), eps) * delta_norm
        return _rms_norm(x, eps).to(dtype)

    def gated_mlp(self, gate_up: Tensor, *, gelu: bool) -> Tensor:
        """silu(gate) * up or gelu(gate) * up, with gate_up = gate beside up."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        gate = functional.gelu(gate, approximate="tanh") if gelu else functional.silu(gate)
        return (gate * up).to(gate_up.dtype)

    def store_kv(
        self, qkv: Tensor, layer: PackedLayer, cache: LayerCache, shape: ModelShape
    ) -> None:
        """Write the key and value of each row to its slot and position."""
        _, keys, values = _split_qkv(qkv, shape)
        keys = _norm_rope(keys, layer.k_norm, cache, shape.eps)
        cache.keys[cache.slots, :, cache.positions] = keys.to(cache.keys.dtype)
        cache.values[cache.slots, :, cache.positions] = values.to(cache.values.dtype)

    def decode_attention(
        self, qkv: Tensor, layer: PackedLayer, cache: LayerCache, shape: ModelShape, *, splits: int
    ) -> Tensor:
        """Write the rows' keys and values; each row attends to its slot up to its position.

        `splits` matters to the kernel alone.
        """
        self.store_kv(qkv, layer, cache, shape)
        return self.prefill_attention(qkv, layer, cache, shape)

    def prefill_attention(
        self, qkv: Tensor, layer: PackedLayer, cache: LayerCache, shape: ModelShape
    ) -> Tensor:
        """Attention of rows whose keys and values are already in the cache."""
        queries = _norm_rope(_split_qkv(qkv, shape)[0], layer.q_norm, cache, shape.eps)
        grouped = (shape.num_kv_heads, shape.queries_per_kv_head)
        queries = queries.to(qkv.dtype).float().unflatten(1, grouped)
        length = int(cache.positions.max()) + 1
        keys = cache.keys[cache.slots, :, :length].float()
        values = cache.values[cache.slots, :, :length].float()
        scores = torch.einsum("tkgd,tkld->tkgl", queries, keys) * shape.softmax_scale
        distance = cache.positions.unsqueeze(1) - torch.arange(length, device=qkv.device)
        unseen = (distance < 0) | (distance >= (cache.window or length))
        scores = scores.masked_fill(unseen[:, None, None, :], float("-inf"))
        out = torch.einsum("tkgl,tkld->tkgd", scores.softmax(-1), values)
        return out.flatten(1).to(qkv.dtype)

    def sample(self, logits: Tensor, batch: BatchState) -> None:
        """Gumbel-max sampling: choose a token for every row, and append it to the active ones."""
        state, sampling = batch.state[:, : len(logits)], batch.sampling[:, : len(logits)]
        greedy = (sampling[TEMPERATURE] == 0).unsqueeze(1)
        scaled = logits - logits.amax(-1, keepdim=True)
        scaled = scaled / sampling[TEMPERATURE].unsqueeze(1).masked_fill(greedy, 1.0)
        noise = gumbel_noise(state[SEED], state[POSITION] + 1, logits.shape[-1])
        scores = scaled + noise.masked_fill(greedy, 0.0)
        scores = scores.masked_fill(logits < sampling[MIN_LOGIT].unsqueeze(1), float("-inf"))
        tokens = scores.argmax(-1)
        logprobs = torch.log_softmax(scaled, -1).gather(-1, tokens.unsqueeze(1)).squeeze(1)
        active = state[ACTIVE] > 0
        row = active.nonzero().squeeze(1)
        step = state[NUM_NEW, row]
        batch.ids[step, row], batch.logprobs[step, row] = tokens[row], logprobs[row]
        state[TOKEN] = torch.where(active, tokens, state[TOKEN])
        for field, change in ((POSITION, 1), (NUM_NEW, 1), (TOKENS_LEFT, -1)):
            state[field] += change * active
        hit_stop = (batch.stops[: len(tokens)] == tokens.unsqueeze(1)).any(1)
        state[ACTIVE] = (active & (state[TOKENS_LEFT] > 0) & ~hit_stop).long()


def _rms_norm(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _split_qkv(qkv: Tensor, shape: ModelShape) -> tuple[Tensor, Tensor, Tensor]:
    heads = qkv.float().unflatten(1, (-1, shape.head_dim))
    first_key, first_value = shape.num_heads, shape.num_heads + shape.num_kv_heads
    return heads[:, :first_key], heads[:, first_key:first_value], heads[:, first_value:]


def _norm_rope(heads: Tensor, norm: Tensor | None, cache: LayerCache, eps: float) -> Tensor:
    """Optional RMSNorm of each head, then rotary embedding ("rotate half")."""
    if norm is not None:
        heads = _rms_norm(heads, eps) * norm
    cos, sin = (table[cache.positions].unsqueeze(1) for table in (cache.cos, cache.sin))
    left, right = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-right, left], dim=-1) * sin


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Gumbel noise [rows, vocab_size]: the argmax of logits plus noise samples their softmax."""
    tokens = torch.arange(vocab_size, device=seeds.device)
    low, high = seeds & MASK_32, (seeds >> 32) & MASK_32
    key_1 = _mix32(_mix32(((positions * GOLDEN_RATIO_32) & MASK_32) ^ low) ^ high)
    key_2 = _mix32((key_1 + SECOND_KEY_OFFSET) & MASK_32)
    bits = _mix32((tokens * GOLDEN_RATIO_32 + key_1.unsqueeze(1)) & MASK_32)
    bits = _mix32(bits ^ key_2.unsqueeze(1))
    u = ((bits.float() + 0.5) * 2.0**-32).clamp(max=MAX_UNIFORM)
    series = u * (1 + u * (0.5 + u / 3))
    return -torch.log(torch.where(u < SERIES_THRESHOLD, series, -torch.log(1 - u)))


def _mix32(bits: Tensor) -> Tensor:
    """Integer hash of 32 bits (held in int64)."""
    bits = ((bits ^ (bits >> 16)) * MIX_MULTIPLIER_1) & MASK_32
    bits = ((bits ^ (bits >> 15)) * MIX_MULTIPLIER_2) & MASK_32
    return bits ^ (bits >> 16)
