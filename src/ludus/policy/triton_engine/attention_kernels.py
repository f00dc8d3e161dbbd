"""Attention of single tokens over what their slots hold, and the storing of keys and values.

One program answers for a token and a head of keys: for all query heads that share it. It goes
through the keys in blocks, as far as this row's own length, and keeps what softmax needs as it
goes. Long rows are shared between programs, and joined after. Only ever import this where there is
a GPU.
"""

from __future__ import annotations

import triton.language as tl

from ludus.policy.triton_engine.jit import jit_kernel


@jit_kernel
def _rope(
    heads: tl.tensor,
    mask: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    norm: tl.tensor,
    position: tl.tensor,
    eps: tl.tensor,
    DIM: tl.constexpr,
    NORMED: tl.constexpr,
) -> tl.tensor:
    """Heads, named by where they begin, normalized if they are to be and turned by a position."""
    at = tl.arange(0, DIM)
    # Each number is turned together with the one that lies half a head away.
    other = (at + DIM // 2) % DIM
    sign = tl.where(at < DIM // 2, -1.0, 1.0)
    own = tl.load(heads + at[None, :], mask=mask, other=0.0).to(tl.float32)
    far = tl.load(heads + other[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORMED:
        size = tl.rsqrt(tl.sum(own * own, axis=1) / DIM + eps)[:, None]
        own = own * size * tl.load(norm + at)[None, :]
        far = far * size * tl.load(norm + other)[None, :]
    cosine = tl.load(cos + position * DIM + at)[None, :]
    sine = tl.load(sin + position * DIM + at)[None, :]
    return own * cosine + far * sign[None, :] * sine


@jit_kernel
def store_kv_kernel(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    positions: tl.tensor,
    eps: tl.tensor,
    slot_stride: tl.tensor,
    head_stride: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    NORMED: tl.constexpr,
) -> None:
    """Put a token's key and value of one head where they belong."""
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(positions + row)
    one = tl.arange(0, 1)[:, None]
    begin = qkv + (row * (HEADS + 2 * KV_HEADS) + HEADS + head) * DIM + one
    key = _rope(begin, one == 0, cos, sin, k_norm, position, eps, DIM, NORMED)
    at = tl.arange(0, DIM)[None, :]
    value = tl.load(begin + KV_HEADS * DIM + at)
    place = tl.load(slots + row) * slot_stride + head * head_stride + position * DIM + at
    tl.store(keys + place, key.to(keys.dtype.element_ty))
    tl.store(values + place, value.to(values.dtype.element_ty))


@jit_kernel
def decode_attention_kernel(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    positions: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    marks: tl.tensor,
    scale: tl.tensor,
    eps: tl.tensor,
    slot_stride: tl.tensor,
    head_stride: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    NORMED: tl.constexpr,
    GROUP: tl.constexpr,
    FRESH: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """What a token sees with the heads of one group.

    Fresh: its own key and value are taken from where they were made, and stored on the way, so
    that nothing is read that was only just written.
    """
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shared: tl.constexpr = HEADS // KV_HEADS
    position = tl.load(positions + row)
    at = tl.arange(0, DIM)
    member = tl.arange(0, GROUP)
    ours = (member < shared)[:, None]
    begin = qkv + row * ((HEADS + 2 * KV_HEADS) * DIM)
    first = head * shared + member
    query = _rope(begin + first[:, None] * DIM, ours, cos, sin, q_norm, position, eps, DIM, NORMED)
    query = query.to(qkv.dtype.element_ty)
    area = tl.load(slots + row) * slot_stride + head * head_stride
    top = tl.full([GROUP], -1.0e30, dtype=tl.float32)
    total = tl.zeros([GROUP], dtype=tl.float32)
    seen = tl.zeros([GROUP, DIM], dtype=tl.float32)
    number = (position + 1).to(tl.int32)
    if FRESH:
        number = position.to(tl.int32)
        one = tl.arange(0, 1)[:, None]
        source = begin + (HEADS + head) * DIM + one
        key = _rope(source, one == 0, cos, sin, k_norm, position, eps, DIM, NORMED)
        key = key.to(keys.dtype.element_ty)
        value = tl.load(source + KV_HEADS * DIM + at[None, :]).to(values.dtype.element_ty)
        mine = split == 0
        place = area + position * DIM + at[None, :]
        tl.store(keys + place, key, mask=mine)
        tl.store(values + place, value, mask=mine)
        score = tl.sum(query.to(tl.float32) * key.to(tl.float32), axis=1) * scale
        top = tl.where(mine, score, top)
        total = tl.where(mine, total + 1.0, total)
        seen = tl.where(mine, seen + value.to(tl.float32), seen)
    share = tl.cdiv(tl.cdiv(number, SPLITS), BLOCK) * BLOCK
    low = split * share
    high = tl.minimum(low + share, number)
    for start in range(low, high, BLOCK):
        token = start + tl.arange(0, BLOCK)
        there = token < high
        ks = tl.load(
            keys + area + token[None, :] * DIM + at[:, None], mask=there[None, :], other=0.0
        )
        scores = tl.dot(query, ks, input_precision="ieee") * scale
        scores = tl.where(there[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(weights, axis=1)
        vs = tl.load(
            values + area + token[:, None] * DIM + at[None, :], mask=there[:, None], other=0.0
        )
        seen = tl.dot(weights.to(vs.dtype), vs, seen * fade[:, None], input_precision="ieee")
        top = higher
    if SPLITS == 1:
        seen = seen / total[:, None]
        target = (row * HEADS + first)[:, None] * DIM + at[None, :]
        tl.store(out + target, seen.to(out.dtype.element_ty), mask=ours)
    else:
        spot = (row * HEADS + first) * SPLITS + split
        tl.store(parts + spot[:, None] * DIM + at[None, :], seen, mask=ours)
        tl.store(marks + spot * 2, top, mask=member < shared)
        tl.store(marks + spot * 2 + 1, total, mask=member < shared)


@jit_kernel
def combine_splits_kernel(
    parts: tl.tensor,
    marks: tl.tensor,
    out: tl.tensor,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """What the programs that shared a row have seen, as one."""
    spot = tl.program_id(0) * HEADS + tl.program_id(1)
    at = tl.arange(0, DIM)
    each = spot * SPLITS + tl.arange(0, SPLITS)
    top = tl.load(marks + each * 2)
    weight = tl.exp(top - tl.max(top, axis=0))
    total = tl.sum(weight * tl.load(marks + each * 2 + 1), axis=0)
    seen = tl.load(parts + each[:, None] * DIM + at[None, :])
    whole = tl.sum(seen * weight[:, None], axis=0) / total
    tl.store(out + spot * DIM + at, whole.to(out.dtype.element_ty))
