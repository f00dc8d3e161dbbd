"""Residuals, RMSNorm and activations, between the matrix products of a layer.

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
    delta_norm: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ADD: tl.constexpr,
    NORM_DELTA: tl.constexpr,
) -> None:
    """x += delta, if ADD, and out = x / rms(x). Grid: (rows,).

    NORM_DELTA: x += delta / rms(delta) * delta_norm instead.
    """
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    mask = k < K
    value = tl.load(x + row * K + k, mask=mask, other=0.0)
    if ADD:
        change = tl.load(delta + row * K + k, mask=mask, other=0.0).to(tl.float32)
        if NORM_DELTA:
            change *= tl.rsqrt(tl.sum(change * change, axis=0) / K + eps)
            change *= tl.load(delta_norm + k, mask=mask, other=0.0)
        value += change
        tl.store(x + row * K + k, value, mask=mask)
    rstd = tl.rsqrt(tl.sum(value * value, axis=0) / K + eps)
    tl.store(out + row * K + k, (value * rstd).to(out.dtype.element_ty), mask=mask)


@triton.jit
def gated_mlp_kernel(
    gate_up: tl.tensor, out: tl.tensor, N: tl.constexpr, BLOCK_N: tl.constexpr, GELU: tl.constexpr
) -> None:
    """out = silu(gate) * up, or gelu for GELU, with gate_up = gate beside up.

    Grid: (rows, N / BLOCK_N). Both activations are x * sigmoid(y), GELU by its usual approximation.
    """
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = n < N
    gate = tl.load(gate_up + row * 2 * N + n, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * N + N + n, mask=mask, other=0.0).to(tl.float32)
    inner = gate
    if GELU:
        inner = 1.5957691216 * (gate + 0.044715 * gate * gate * gate)  # 2 * sqrt(2 / pi)
    result = gate / (1.0 + tl.exp(-inner)) * up
    tl.store(out + row * N + n, result.to(out.dtype.element_ty), mask=mask)
