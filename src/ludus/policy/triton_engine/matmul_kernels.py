"""Products of a few rows with a matrix, and what belongs to them: norm before, sum or gate after.

A norm is one number per row. As a program reads its rows whole, it has that number by the time
that it has the product. Only ever import this where there is a GPU.
"""

from __future__ import annotations

import triton.language as tl

from ludus.policy.triton_engine.jit import jit_kernel


@jit_kernel
def matmul_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
) -> None:
    """The rows of x times the matrix: normalized first, a bias added, added to what is there."""
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros([TALL, WIDE], dtype=tl.float32)
    squares = tl.zeros([TALL], dtype=tl.float32)
    for start in range(0, WIDTH, DEEP):
        at = start + tl.arange(0, DEEP)
        there = (row < rows)[:, None]
        known = (column < COLUMNS)[None, :]
        if WIDTH % DEEP != 0:
            there = there & (at < WIDTH)[None, :]
            known = known & (at < WIDTH)[:, None]
        xs = tl.load(x + row[:, None] * WIDTH + at[None, :], mask=there, other=0.0)
        ws = tl.load(weight + column[None, :] * WIDTH + at[:, None], mask=known, other=0.0)
        if NORM:
            exact = xs.to(tl.float32)
            squares += tl.sum(exact * exact, axis=1)
        total = tl.dot(xs.to(ws.dtype), ws, total, input_precision="ieee")
    if NORM:
        total = total * tl.rsqrt(squares / WIDTH + eps)[:, None]
    if BIAS:
        total = total + tl.load(bias + column, mask=column < COLUMNS, other=0.0)[None, :]
    inside = (row < rows)[:, None] & (column < COLUMNS)[None, :]
    place = out + row[:, None] * COLUMNS + column[None, :]
    if ADD:
        total = total + tl.load(place, mask=inside, other=0.0)
    tl.store(place, total.to(out.dtype.element_ty), mask=inside)


@jit_kernel
def swiglu_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
) -> None:
    """The normalized rows of x times both halves of the matrix: silu of the first, times the
    second."""
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    gate = tl.zeros([TALL, WIDE], dtype=tl.float32)
    up = tl.zeros([TALL, WIDE], dtype=tl.float32)
    squares = tl.zeros([TALL], dtype=tl.float32)
    for start in range(0, WIDTH, DEEP):
        at = start + tl.arange(0, DEEP)
        there = (row < rows)[:, None]
        known = (column < COLUMNS)[None, :]
        if WIDTH % DEEP != 0:
            there = there & (at < WIDTH)[None, :]
            known = known & (at < WIDTH)[:, None]
        xs = tl.load(x + row[:, None] * WIDTH + at[None, :], mask=there, other=0.0)
        place = weight + column[None, :] * WIDTH + at[:, None]
        gates = tl.load(place, mask=known, other=0.0)
        ups = tl.load(place + COLUMNS * WIDTH, mask=known, other=0.0)
        exact = xs.to(tl.float32)
        squares += tl.sum(exact * exact, axis=1)
        xs = xs.to(gates.dtype)
        gate = tl.dot(xs, gates, gate, input_precision="ieee")
        up = tl.dot(xs, ups, up, input_precision="ieee")
    size = tl.rsqrt(squares / WIDTH + eps)[:, None]
    gate = gate * size
    opened = gate / (1.0 + tl.exp(-gate)) * (up * size)
    tl.store(
        out + row[:, None] * COLUMNS + column[None, :],
        opened.to(out.dtype.element_ty),
        mask=(row < rows)[:, None] & (column < COLUMNS)[None, :],
    )
