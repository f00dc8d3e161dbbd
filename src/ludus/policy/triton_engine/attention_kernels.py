"""Decode attention and KV cache writes: split-KV flash decoding for grouped-query attention.

A program handles one token, one KV head and one split of the cached sequence, for all query heads
that share the KV head, so that keys and values are loaded once. It walks its split in blocks of
BLOCK_N tokens with an online softmax: `m_i` is the running maximum, `l_i` the running sum of
exponentials, `acc` the unnormalized output. With SPLITS > 1 a second kernel combines the partial
results.

Shapes: qkv [rows, H + 2 * H_KV, D], keys and values [slots, H_KV, slot_length, D], cos and sin
[slot_length, D], slots and positions [rows], out [rows, H, D], partial_acc [rows, H, SPLITS, D],
partial_ml [rows, H, SPLITS, 2]. Import this only if there is a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ludus.policy.triton_engine.model_weights import ModelShape


@triton.jit
def _norm_rope(
    heads: tl.tensor,
    mask: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    norm: tl.tensor,
    position: tl.tensor,
    eps: tl.tensor,
    D: tl.constexpr,
    QK_NORM: tl.constexpr,
) -> tl.tensor:
    """Load heads [n, D] from their base pointers; apply the optional RMSNorm, then RoPE.

    position: one for all heads, or one per head, [n, 1].
    "Rotate half" layout: dimension d is rotated together with dimension d + D / 2.
    """
    d = tl.arange(0, D)
    pair = (d + D // 2) % D
    sign = tl.where(d < D // 2, -1.0, 1.0)
    x = tl.load(heads + d[None, :], mask=mask, other=0.0).to(tl.float32)
    x_pair = tl.load(heads + pair[None, :], mask=mask, other=0.0).to(tl.float32)
    if QK_NORM:
        rstd = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
        x = x * rstd * tl.load(norm + d)[None, :]
        x_pair = x_pair * rstd * tl.load(norm + pair)[None, :]
    cos_d = tl.load(cos + position * D + d[None, :])
    sin_d = tl.load(sin + position * D + d[None, :])
    return x * cos_d + x_pair * sign[None, :] * sin_d


@triton.jit
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
    H: tl.constexpr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    QK_NORM: tl.constexpr,
) -> None:
    """Write the key and value of one token and KV head to the cache. Grid: (rows, H_KV)."""
    row, kv_head = tl.program_id(0), tl.program_id(1)
    position = tl.load(positions + row)
    one = tl.arange(0, 1)[:, None]
    key_ptr = qkv + (row * (H + 2 * H_KV) + H + kv_head) * D + one
    k = _norm_rope(key_ptr, one == 0, cos, sin, k_norm, position, eps, D, QK_NORM)
    d = tl.arange(0, D)[None, :]
    v = tl.load(key_ptr + H_KV * D + d)
    offset = tl.load(slots + row) * slot_stride + kv_head * head_stride + position * D + d
    tl.store(keys + offset, k.to(keys.dtype.element_ty))
    tl.store(values + offset, v.to(values.dtype.element_ty))


@triton.jit
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
    partial_acc: tl.tensor,
    partial_ml: tl.tensor,
    scale: tl.tensor,
    eps: tl.tensor,
    slot_stride: tl.tensor,
    head_stride: tl.tensor,
    H: tl.constexpr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    QK_NORM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Attention of one token over its slot, up to its own position. Grid: (rows, H_KV, SPLITS).

    BLOCK_G: the number of query heads per KV head, padded to a size that `tl.dot` accepts.
    WINDOW: number of tokens that it attends to, itself included; 0: all before it. The
    token's own key and value are taken from qkv and written to the cache by the program of split 0,
    so that no program reads a value while another writes it.
    """
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group_size: tl.constexpr = H // H_KV
    position = tl.load(positions + row)
    d = tl.arange(0, D)
    g = tl.arange(0, BLOCK_G)
    g_mask = (g < group_size)[:, None]
    row_ptr = qkv + row * ((H + 2 * H_KV) * D)
    head = kv_head * group_size + g
    q = _norm_rope(row_ptr + head[:, None] * D, g_mask, cos, sin, q_norm, position, eps, D, QK_NORM)
    q = q.to(qkv.dtype.element_ty)
    base = tl.load(slots + row) * slot_stride + kv_head * head_stride
    m_i = tl.full([BLOCK_G], -1.0e30, dtype=tl.float32)
    l_i = tl.zeros([BLOCK_G], dtype=tl.float32)
    acc = tl.zeros([BLOCK_G, D], dtype=tl.float32)
    length = position.to(tl.int32)
    one = tl.arange(0, 1)[:, None]
    key_ptr = row_ptr + (H + kv_head) * D + one
    k_new = _norm_rope(key_ptr, one == 0, cos, sin, k_norm, position, eps, D, QK_NORM)
    k_new = k_new.to(keys.dtype.element_ty)
    v_new = tl.load(key_ptr + H_KV * D + d[None, :]).to(values.dtype.element_ty)
    first = split == 0
    offset = base + position * D + d[None, :]
    tl.store(keys + offset, k_new, mask=first)
    tl.store(values + offset, v_new, mask=first)
    s_new = tl.sum(q.to(tl.float32) * k_new.to(tl.float32), axis=1) * scale
    m_i = tl.where(first, s_new, m_i)
    l_i = tl.where(first, l_i + 1.0, l_i)
    acc = tl.where(first, acc + v_new.to(tl.float32), acc)
    low = tl.maximum(length + 1 - WINDOW, 0) if WINDOW else 0
    split_length = tl.cdiv(tl.cdiv(length - low, SPLITS), BLOCK_N) * BLOCK_N
    start = low + split * split_length
    end = tl.minimum(start + split_length, length)
    for start_n in range(start, end, BLOCK_N):
        n = start_n + tl.arange(0, BLOCK_N)
        n_mask = n < end
        k = tl.load(keys + base + n[None, :] * D + d[:, None], mask=n_mask[None, :], other=0.0)
        s = tl.dot(q, k, input_precision="ieee") * scale
        s = tl.where(n_mask[None, :], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, axis=1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        v = tl.load(values + base + n[:, None] * D + d[None, :], mask=n_mask[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
        m_i = m_new
    if SPLITS == 1:
        acc = acc / l_i[:, None]
        offset = (row * H + head)[:, None] * D + d[None, :]
        tl.store(out + offset, acc.to(out.dtype.element_ty), mask=g_mask)
    else:
        part = (row * H + head) * SPLITS + split
        tl.store(partial_acc + part[:, None] * D + d[None, :], acc, mask=g_mask)
        tl.store(partial_ml + part * 2, m_i, mask=g < group_size)
        tl.store(partial_ml + part * 2 + 1, l_i, mask=g < group_size)


@triton.jit
def prefill_attention_kernel(
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
    scale: tl.tensor,
    eps: tl.tensor,
    slot_stride: tl.tensor,
    head_stride: tl.tensor,
    H: tl.constexpr,
    H_KV: tl.constexpr,
    D: tl.constexpr,
    QK_NORM: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_G: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Causal attention of CHUNK prompt tokens of one slot, whose keys are in the cache already.

    Grid: (rows / CHUNK, H_KV). Tokens that pad a chunk have position 0; their outputs are unused.
    """
    first, kv_head = tl.program_id(0) * CHUNK, tl.program_id(1)
    d = tl.arange(0, D)
    query = tl.arange(0, CHUNK * BLOCK_G)  # All query heads of the KV head, token by token.
    row, g = first + query // BLOCK_G, query % BLOCK_G
    mask = (g < H // H_KV)[:, None]
    position = tl.load(positions + row)[:, None]
    head = row * (H + 2 * H_KV) + kv_head * (H // H_KV) + g
    q = _norm_rope(qkv + head[:, None] * D, mask, cos, sin, q_norm, position, eps, D, QK_NORM)
    q = q.to(qkv.dtype.element_ty)
    base = tl.load(slots + first) * slot_stride + kv_head * head_stride
    m_i = tl.full([CHUNK * BLOCK_G], -1.0e30, dtype=tl.float32)
    l_i = tl.zeros([CHUNK * BLOCK_G], dtype=tl.float32)
    acc = tl.zeros([CHUNK * BLOCK_G, D], dtype=tl.float32)
    length = (tl.max(tl.max(position, axis=1), axis=0) + 1).to(tl.int32)
    low = tl.maximum(tl.load(positions + first).to(tl.int32) + 1 - WINDOW, 0) if WINDOW else 0
    for start_n in range(low, length, BLOCK_N):
        n = start_n + tl.arange(0, BLOCK_N)
        n_mask = n < length
        k = tl.load(keys + base + n[None, :] * D + d[:, None], mask=n_mask[None, :], other=0.0)
        s = tl.dot(q, k, input_precision="ieee") * scale
        seen = n[None, :] <= position
        if WINDOW:
            seen = seen & (n[None, :] > position - WINDOW)
        s = tl.where(seen, s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, axis=1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        v = tl.load(values + base + n[:, None] * D + d[None, :], mask=n_mask[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
        m_i = m_new
    out_head = row * H + kv_head * (H // H_KV) + g
    acc = acc / tl.maximum(l_i, 1.0e-30)[:, None]  # Padding may see no token at all.
    tl.store(out + out_head[:, None] * D + d[None, :], acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def combine_splits_kernel(
    partial_acc: tl.tensor,
    partial_ml: tl.tensor,
    out: tl.tensor,
    H: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """Rescale the splits' partial outputs to a common maximum and add them. Grid: (rows, H)."""
    row_head = tl.program_id(0) * H + tl.program_id(1)
    d = tl.arange(0, D)
    part = row_head * SPLITS + tl.arange(0, SPLITS)
    m_i = tl.load(partial_ml + part * 2)
    alpha = tl.exp(m_i - tl.max(m_i, axis=0))
    l_sum = tl.sum(alpha * tl.load(partial_ml + part * 2 + 1), axis=0)
    acc = tl.load(partial_acc + part[:, None] * D + d[None, :])
    result = tl.sum(acc * alpha[:, None], axis=0) / l_sum
    tl.store(out + row_head * D + d, result.to(out.dtype.element_ty))


def attention_constants(shape: ModelShape) -> dict[str, int]:
    """The constants that `store_kv_kernel` and `decode_attention_kernel` are compiled for."""
    return {
        "H": shape.num_heads,
        "H_KV": shape.num_kv_heads,
        "D": shape.head_dim,
        "QK_NORM": shape.qk_norm,
    }
