"""Residuals, RMSNorm and SwiGLU, between the matrix products of a layer.

Shapes: x [rows, K] in float32; delta and out [rows, K] and gate_up [rows, 2 * N] in the dtype of
the weights. Import this only if there is a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_norm_kernel(
    x: tl.tensor,
    delta: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ADD: tl.constexpr,
) -> None:
    """x += delta, if ADD, and out = x / rms(x). Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    mask = k < K
    value = tl.load(x + row * K + k, mask=mask, other=0.0)
    if ADD:
        value += tl.load(delta + row * K + k, mask=mask, other=0.0).to(tl.float32)
        tl.store(x + row * K + k, value, mask=mask)
    rstd = tl.rsqrt(tl.sum(value * value, axis=0) / K + eps)
    tl.store(out + row * K + k, (value * rstd).to(out.dtype.element_ty), mask=mask)


@triton.jit
def swiglu_kernel(
    gate_up: tl.tensor, out: tl.tensor, N: tl.constexpr, BLOCK_N: tl.constexpr
) -> None:
    """out = silu(gate) * up, with gate_up = gate beside up. Grid: (rows, N / BLOCK_N)."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = n < N
    gate = tl.load(gate_up + row * 2 * N + n, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * N + N + n, mask=mask, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * N + n, result.to(out.dtype.element_ty), mask=mask)
