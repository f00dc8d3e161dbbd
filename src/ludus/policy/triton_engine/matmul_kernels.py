"""Matrix products for few rows, fused with the RMSNorm before and the residual or SwiGLU after.

The norm's weight is already folded into the matrix (see `model_weights`), so RMSNorm is one factor
per row, `rstd`. A program reads its rows of x completely for the product; it accumulates the sum of
squares on the way and scales the product at the end.

Both kernels write out the loop over K: with a shared function that loads the blocks, the compiler
spills registers of `swiglu_kernel`, which then takes 3 % longer with small tiles (H200).

Shapes: x [M, K], weight [N, K] (row-major, as in `nn.Linear`), bias [N], out [M, N]. Import this
only if there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

TILE_SHAPES = ((64, 128), (64, 32), (32, 16), (16, 16))
"""(BLOCK_M, BLOCK_N) of the matrix products, largest first: large tiles read the least."""
MIN_PROGRAMS = 100
"""Programs that keep a large GPU busy."""


def jit_kernel(function: Callable[..., Any]) -> Any:
    """Compile at the first launch; launched as `function[grid](...)`.

    `M`, the number of rows, changes all the time: without `do_not_specialize` Triton would compile
    another kernel for M = 1 and for multiples of 16.
    """
    return triton.jit(function, do_not_specialize=["M"])


@jit_kernel
def matmul_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    M: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    RMS_NORM: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """out = norm(x) @ weight.T + bias, or out += that for RESIDUAL.

    Grid: (M / BLOCK_M, N / BLOCK_N).
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    sum_squares = tl.zeros([BLOCK_M], dtype=tl.float32)
    for start_k in range(0, K, BLOCK_K):
        k = start_k + tl.arange(0, BLOCK_K)
        x_mask = (m < M)[:, None]
        w_mask = (n < N)[None, :]
        if K % BLOCK_K != 0:
            x_mask = x_mask & (k < K)[None, :]
            w_mask = w_mask & (k < K)[:, None]
        x_block = tl.load(x + m[:, None] * K + k[None, :], mask=x_mask, other=0.0)
        w_block = tl.load(weight + n[None, :] * K + k[:, None], mask=w_mask, other=0.0)
        if RMS_NORM:
            x_f32 = x_block.to(tl.float32)
            sum_squares += tl.sum(x_f32 * x_f32, axis=1)
        acc = tl.dot(x_block.to(w_block.dtype), w_block, acc, input_precision="ieee")
    if RMS_NORM:
        acc = acc * tl.rsqrt(sum_squares / K + eps)[:, None]
    if BIAS:
        acc = acc + tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    out_mask = (m < M)[:, None] & (n < N)[None, :]
    out_ptr = out + m[:, None] * N + n[None, :]
    if RESIDUAL:
        acc = acc + tl.load(out_ptr, mask=out_mask, other=0.0)
    tl.store(out_ptr, acc.to(out.dtype.element_ty), mask=out_mask)


@jit_kernel
def swiglu_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    M: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """out = silu(norm(x) @ gate.T) * (norm(x) @ up.T), with weight [2 * N, K] = gate over up.

    Grid: (M / BLOCK_M, N / BLOCK_N).
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    gate_acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    up_acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    sum_squares = tl.zeros([BLOCK_M], dtype=tl.float32)
    for start_k in range(0, K, BLOCK_K):
        k = start_k + tl.arange(0, BLOCK_K)
        x_mask = (m < M)[:, None]
        w_mask = (n < N)[None, :]
        if K % BLOCK_K != 0:
            x_mask = x_mask & (k < K)[None, :]
            w_mask = w_mask & (k < K)[:, None]
        x_block = tl.load(x + m[:, None] * K + k[None, :], mask=x_mask, other=0.0)
        gate_ptr = weight + n[None, :] * K + k[:, None]
        gate_block = tl.load(gate_ptr, mask=w_mask, other=0.0)
        up_block = tl.load(gate_ptr + N * K, mask=w_mask, other=0.0)
        x_f32 = x_block.to(tl.float32)
        sum_squares += tl.sum(x_f32 * x_f32, axis=1)
        x_block = x_block.to(gate_block.dtype)
        gate_acc = tl.dot(x_block, gate_block, gate_acc, input_precision="ieee")
        up_acc = tl.dot(x_block, up_block, up_acc, input_precision="ieee")
    rstd = tl.rsqrt(sum_squares / K + eps)[:, None]
    gate = gate_acc * rstd
    result = gate / (1.0 + tl.exp(-gate)) * (up_acc * rstd)
    tl.store(
        out + m[:, None] * N + n[None, :],
        result.to(out.dtype.element_ty),
        mask=(m < M)[:, None] & (n < N)[None, :],
    )


def pick_matmul_tile(m: int, n: int) -> tuple[int, int]:
    """The largest tile of a matrix product that still gives enough programs to a large GPU."""
    for block_m, block_n in TILE_SHAPES:
        if triton.cdiv(m, block_m) * triton.cdiv(n, block_n) >= MIN_PROGRAMS:
            return block_m, block_n
    return TILE_SHAPES[-1]


def matmul_launch_options(k: int, tile_area: int) -> dict[str, int]:
    """BLOCK_K, warps and pipeline stages."""
    small = tile_area <= 512
    block_k = 128 if small and k % 128 == 0 else 64
    while block_k > 16 and k % block_k:
        block_k //= 2
    return {"BLOCK_K": block_k, "num_warps": 2 if small else 4, "num_stages": 4 if small else 3}
