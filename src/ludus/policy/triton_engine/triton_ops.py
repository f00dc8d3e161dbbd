"""The operations of a forward pass and of sampling, as launches of Triton kernels.

A decoding step of a small model on a large GPU is bound by memory bandwidth and launches. So there
are five kernels to a layer: norms, biases, rotary embeddings, activations and residuals are fused
into the matrix products and the attention beside them. Import this only on a machine with a GPU.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

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
from ludus.policy.triton_engine.matmul_kernels import (
    matmul_kernel,
    matmul_launch_options,
    pick_matmul_tile,
    swiglu_kernel,
)
from ludus.policy.triton_engine.model_weights import ModelShape, PackedLayer
from ludus.policy.triton_engine.reference_ops import ReferenceOps
from ludus.policy.triton_engine.sampling_kernels import sample_block_kernel, sample_combine_kernel

BLOCK_N = 64
"""Cached tokens that attention handles in one iteration."""
BLOCK_V = 4096
"""Part of the vocabulary that one sampling program handles."""


class TritonOps(ReferenceOps):
    """Each operation as the launch of one Triton kernel, or two."""

    prefill_chunk = 16

    def norm_linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float, dtype: torch.dtype
    ) -> Tensor:
        out = torch.empty(len(x), len(weight), dtype=dtype, device=x.device)
        self._launch_matmul(x, weight, bias, out, eps=eps, rms_norm=True, residual=False)
        return out

    def linear_residual(
        self, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> None:
        self._launch_matmul(x, weight, bias, residual, eps=0.0, rms_norm=False, residual=True)

    def _launch_matmul(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        out: Tensor,
        *,
        eps: float,
        rms_norm: bool,
        residual: bool,
    ) -> None:
        m, (n, k) = len(x), weight.shape
        block_m, block_n = pick_matmul_tile(m, n)
        # Rows vary fastest: programs that read the same part of the matrix run next to each other,
        # and find it in the L2 cache.
        matmul_kernel[triton.cdiv(m, block_m), triton.cdiv(n, block_n)](
            x, weight, weight if bias is None else bias, out, m, eps,
            N=n, K=k, RMS_NORM=rms_norm, BIAS=bias is not None, RESIDUAL=residual,
            BLOCK_M=block_m, BLOCK_N=block_n, **matmul_launch_options(k, block_m * block_n),
        )  # fmt: skip

    def norm_swiglu(self, x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        m, n, k = len(x), len(weight) // 2, weight.shape[1]
        out = torch.empty(m, n, dtype=weight.dtype, device=x.device)
        block_m, block_n = pick_matmul_tile(m, n)
        block_n = min(block_n, 64)  # Two accumulators have to fit into registers.
        swiglu_kernel[triton.cdiv(m, block_m), triton.cdiv(n, block_n)](
            x, weight, out, m, eps,
            N=n, K=k, BLOCK_M=block_m, BLOCK_N=block_n,
            **matmul_launch_options(k, block_m * block_n),
        )  # fmt: skip
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
            SPLITS=splits, BLOCK_N=BLOCK_N, num_warps=4, num_stages=3,
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
            CHUNK=chunk, BLOCK_G=group, BLOCK_N=BLOCK_N,
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
