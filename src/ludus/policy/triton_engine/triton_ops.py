"""The operations of a forward pass and of sampling on a GPU: cuBLAS, and Triton kernels.

What lies between matrix products is fused: RMSNorm with the residual before it, and rotary
embeddings and the write to the KV cache with attention. (Norms and activations fused into matrix
products of our own took 1.7 times as long at 512 rows of SmolLM2-135M.) Import this only on a
machine with a GPU.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from torch.nn import functional

from ludus.policy.triton_engine.attention_kernels import (
    attention_constants,
    combine_splits_kernel,
    decode_attention_kernel,
    prefill_attention_kernel,
    store_kv_kernel,
)
from ludus.policy.triton_engine.batch_state import (
    ACTIVE,
    MIN_LOGIT,
    NUM_NEW,
    POSITION,
    SEED,
    TOKEN,
    TOKENS_LEFT,
    BatchState,
)
from ludus.policy.triton_engine.kv_cache import LayerCache
from ludus.policy.triton_engine.layer_kernels import add_norm_kernel, gated_mlp_kernel
from ludus.policy.triton_engine.model_weights import ModelShape, PackedLayer
from ludus.policy.triton_engine.reference_ops import ReferenceOps
from ludus.policy.triton_engine.sampling_kernels import sample_block_kernel, sample_combine_kernel

BLOCK_N = 64
"""Cached tokens that attention handles in one iteration."""
BLOCK_MLP = 1024
BLOCK_V = 4096
"""Part of the vocabulary that one sampling program handles."""


class TritonOps(ReferenceOps):
    """The operations, each of which launches one or two kernels."""

    prefill_chunk = 16

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, exact: bool = False
    ) -> Tensor:
        if exact and x.dtype != torch.float32:
            return torch.mm(x, weight.T, out_dtype=torch.float32)
        return functional.linear(x, weight, bias)

    def add_norm(
        self, x: Tensor, delta: Tensor | None, delta_norm: Tensor | None = None, *, eps: float,
        dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        rows, width = x.shape
        out = torch.empty(rows, width, dtype=dtype, device=x.device)
        block = triton.next_power_of_2(width)
        add_norm_kernel[(rows,)](
            x, x if delta is None else delta, x if delta_norm is None else delta_norm, out, eps,
            K=width, BLOCK_K=block, ADD=delta is not None, NORM_DELTA=delta_norm is not None,
            num_warps=min(8, max(1, block // 512)),
        )  # fmt: skip
        return out

    def gated_mlp(self, gate_up: Tensor, *, gelu: bool) -> Tensor:
        rows, width = len(gate_up), gate_up.shape[1] // 2
        out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
        gated_mlp_kernel[rows, triton.cdiv(width, BLOCK_MLP)](
            gate_up, out, N=width, BLOCK_N=BLOCK_MLP, GELU=gelu, num_warps=4
        )
        return out

    def store_kv(
        self, qkv: Tensor, layer: PackedLayer, cache: LayerCache, shape: ModelShape
    ) -> None:
        store_kv_kernel[len(qkv), shape.num_kv_heads](
            qkv, *_rope_and_norms(layer, cache), cache.keys, cache.values,
            cache.slots, cache.positions, shape.eps, cache.keys.stride(0), cache.keys.stride(1),
            **attention_constants(shape), num_warps=1,
        )  # fmt: skip

    def decode_attention(
        self, qkv: Tensor, layer: PackedLayer, cache: LayerCache, shape: ModelShape, *, splits: int
    ) -> Tensor:
        rows, heads, head_dim = len(qkv), shape.num_heads, shape.head_dim
        out = torch.empty(rows, heads * head_dim, dtype=qkv.dtype, device=qkv.device)
        acc, ml = out, out  # Placeholders: with a single split the kernel does not use them.
        if splits > 1:
            acc = torch.empty(rows, heads, splits, head_dim, dtype=torch.float32, device=qkv.device)
            ml = torch.empty(rows, heads, splits, 2, dtype=torch.float32, device=qkv.device)
        decode_attention_kernel[rows, shape.num_kv_heads, splits](
            qkv, *_rope_and_norms(layer, cache), cache.keys, cache.values,
            cache.slots, cache.positions, out, acc, ml, shape.softmax_scale, shape.eps,
            cache.keys.stride(0), cache.keys.stride(1), **attention_constants(shape),
            BLOCK_G=max(16, triton.next_power_of_2(shape.queries_per_kv_head)),
            WINDOW=cache.window, SPLITS=splits,
            BLOCK_N=BLOCK_N if head_dim <= 128 else BLOCK_N // 2, num_warps=4, num_stages=3,
        )  # fmt: skip
        if splits > 1:
            combine_splits_kernel[rows, heads](
                acc, ml, out, H=heads, D=head_dim, SPLITS=splits, num_warps=1
            )
        return out

    def prefill_attention(
        self, qkv: Tensor, layer: PackedLayer, cache: LayerCache, shape: ModelShape
    ) -> Tensor:
        chunk, group = self.prefill_chunk, triton.next_power_of_2(shape.queries_per_kv_head)
        out = torch.empty(
            len(qkv), shape.num_heads * shape.head_dim, dtype=qkv.dtype, device=qkv.device
        )
        prefill_attention_kernel[len(qkv) // chunk, shape.num_kv_heads](
            qkv, *_rope_and_norms(layer, cache), cache.keys, cache.values,
            cache.slots, cache.positions, out, shape.softmax_scale, shape.eps,
            cache.keys.stride(0), cache.keys.stride(1), **attention_constants(shape),
            CHUNK=chunk, BLOCK_G=group, WINDOW=cache.window,
            BLOCK_N=BLOCK_N if shape.head_dim <= 128 else BLOCK_N // 2,
            num_warps=4 if chunk * group <= 64 else 8, num_stages=2,
        )  # fmt: skip
        return out

    def sample(self, logits: Tensor, batch: BatchState) -> None:
        rows, vocab_size = logits.shape
        blocks = triton.cdiv(vocab_size, BLOCK_V)
        stats = torch.empty(rows, blocks, 4, dtype=torch.float32, device=logits.device)
        ids = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
        # Row 0 of `sampling` holds the temperatures.
        sample_block_kernel[rows, blocks](
            logits, batch.state[SEED], batch.state[POSITION], batch.sampling,
            batch.sampling[MIN_LOGIT], stats, ids,
            V=vocab_size, BLOCKS=blocks, BLOCK_V=BLOCK_V, num_warps=8,
        )  # fmt: skip
        sample_combine_kernel[(rows,)](
            stats, ids, batch.sampling, batch.state, batch.stops, batch.ids, batch.logprobs,
            batch.capacity, STOPS=batch.stops.shape[1], BLOCKS=blocks,
            BLOCKS_PADDED=triton.next_power_of_2(blocks), TOKEN=TOKEN, POSITION=POSITION,
            TOKENS_LEFT=TOKENS_LEFT, ACTIVE=ACTIVE, NUM_NEW=NUM_NEW, num_warps=1,
        )  # fmt: skip


def _rope_and_norms(layer: PackedLayer, cache: LayerCache) -> tuple[Tensor, ...]:
    """cos, sin, q_norm, k_norm; without norms, any pointer will do, as it is not read."""
    if layer.q_norm is None:
        return cache.cos, cache.sin, cache.cos, cache.cos
    return cache.cos, cache.sin, layer.q_norm, layer.k_norm
