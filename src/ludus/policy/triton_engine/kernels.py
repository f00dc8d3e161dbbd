"""The operations of a step as Triton kernels, with the functions that `reference` has.

A step of a small model on a large GPU waits for memory and for launches, not for arithmetic. So
there are five kernels to a layer: norms, biases, rotations, activations and sums are worked out
within the matrix products and the attention that they belong to. Query heads that share keys are
answered by one program, so that keys are read once and never expanded.

Triton and torch are imported at the top: only ever import this where there is a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from ludus.policy.triton_engine.attention_kernels import (
    combine_splits_kernel,
    decode_attention_kernel,
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
from ludus.policy.triton_engine.matmul_kernels import matmul_kernel, swiglu_kernel
from ludus.policy.triton_engine.model_shape import ModelShape
from ludus.policy.triton_engine.packed_weights import PackedLayer
from ludus.policy.triton_engine.sampling_kernels import sample_block_kernel, sample_combine_kernel

TILE_SHAPES = ((64, 128), (64, 32), (32, 16), (16, 16))
"""Rows and columns that one program works out, large ones first: they read the least."""
MIN_PROGRAMS = 100
"""Programs that keep a large GPU busy."""
BLOCK_N = 64
"""Keys that are looked at in one go."""
VOCAB_BLOCK = 4096
"""Of the vocabulary, what one program draws from."""


def project(x: Any, weight: Any, bias: Any, *, eps: float, dtype: Any) -> Any:
    out = torch.empty(len(x), len(weight), dtype=dtype, device=x.device)
    _launch_matmul(x, weight, bias, out, eps=eps, norm=True, add=False)
    return out


def add(x: Any, more: Any, weight: Any, bias: Any) -> None:
    _launch_matmul(more, weight, bias, x, eps=0.0, norm=False, add=True)


def _launch_matmul(
    x: Any, weight: Any, bias: Any, out: Any, *, eps: float, norm: bool, add: bool
) -> None:
    rows, (columns, width) = len(x), weight.shape
    tall, wide = _pick_tile(rows, columns)
    matmul_kernel[_grid(rows, tall, columns, wide)](
        x, weight, weight if bias is None else bias, out, rows, eps,
        COLUMNS=columns, WIDTH=width, NORM=norm, BIAS=bias is not None, ADD=add,
        TALL=tall, WIDE=wide, **_launch_options(width, tall * wide),
    )  # fmt: skip


def gated(x: Any, weight: Any, *, eps: float) -> Any:
    rows, columns, width = len(x), len(weight) // 2, weight.shape[1]
    out = torch.empty(rows, columns, dtype=weight.dtype, device=x.device)
    tall, wide = _pick_tile(rows, columns)
    wide = min(wide, 64)  # There are two products to be kept at once.
    swiglu_kernel[_grid(rows, tall, columns, wide)](
        x, weight, out, rows, eps,
        COLUMNS=columns, WIDTH=width, TALL=tall, WIDE=wide, **_launch_options(width, tall * wide),
    )  # fmt: skip
    return out


def _pick_tile(rows: int, columns: int) -> tuple[int, int]:
    """The largest of which there are enough to keep all processors busy."""
    for tall, wide in TILE_SHAPES:
        if triton.cdiv(rows, tall) * triton.cdiv(columns, wide) >= MIN_PROGRAMS:
            return tall, wide
    return TILE_SHAPES[-1]


def _grid(rows: int, tall: int, columns: int, wide: int) -> tuple[int, int]:
    """Programs of the same columns come one after the other, and find the matrix in the cache."""
    return triton.cdiv(rows, tall), triton.cdiv(columns, wide)


def _launch_options(width: int, area: int) -> dict[str, int]:
    """How much is read in one go, how far ahead, and by how many."""
    deep = 128 if area <= 512 and width % 128 == 0 else 64
    while deep > 16 and width % deep:
        deep //= 2
    small = area <= 512
    return {"DEEP": deep, "num_warps": 2 if small else 4, "num_stages": 4 if small else 3}


def store(qkv: Any, layer: PackedLayer, room: LayerCache, blueprint: ModelShape) -> None:
    store_kv_kernel[(len(qkv), blueprint.num_kv_heads)](
        qkv, *_rope_and_norms(layer, room), room.keys, room.values, room.slots, room.positions,
        blueprint.eps, room.keys.stride(0), room.keys.stride(1), **_shape_constants(blueprint), num_warps=1,
    )  # fmt: skip


def attend(
    qkv: Any,
    layer: PackedLayer,
    room: LayerCache,
    blueprint: ModelShape,
    *,
    fresh: bool,
    splits: int,
) -> Any:
    rows, heads, size = len(qkv), blueprint.num_heads, blueprint.head_dim
    out = torch.empty(rows, heads * size, dtype=qkv.dtype, device=qkv.device)
    parts, marks = out, out
    if splits > 1:
        parts = torch.empty(rows, heads, splits, size, dtype=torch.float32, device=qkv.device)
        marks = torch.empty(rows, heads, splits, 2, dtype=torch.float32, device=qkv.device)
    decode_attention_kernel[(rows, blueprint.num_kv_heads, splits)](
        qkv, *_rope_and_norms(layer, room), room.keys, room.values, room.slots, room.positions,
        out, parts, marks, blueprint.softmax_scale, blueprint.eps,
        room.keys.stride(0), room.keys.stride(1), **_shape_constants(blueprint),
        GROUP=max(16, triton.next_power_of_2(blueprint.queries_per_kv_head)),
        FRESH=fresh, SPLITS=splits, BLOCK=BLOCK_N, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        combine_splits_kernel[(rows, heads)](
            parts, marks, out, HEADS=heads, DIM=size, SPLITS=splits, num_warps=1
        )
    return out


def _rope_and_norms(layer: PackedLayer, room: LayerCache) -> tuple[Any, Any, Any, Any]:
    """The tables of rotations and the norms; where there is none, anything will do for it."""
    if layer.q_norm is None:
        return room.cos, room.sin, room.cos, room.cos
    return room.cos, room.sin, layer.q_norm, layer.k_norm


def _shape_constants(blueprint: ModelShape) -> dict[str, Any]:
    return {
        "HEADS": blueprint.num_heads,
        "KV_HEADS": blueprint.num_kv_heads,
        "DIM": blueprint.head_dim,
        "NORMED": blueprint.qk_norm,
    }


def sample(logits: Any, rows: BatchState) -> None:
    number, words = logits.shape
    parts = triton.cdiv(words, VOCAB_BLOCK)
    found = torch.empty(number, parts, 4, dtype=torch.float32, device=logits.device)
    ids = torch.empty(number, parts, dtype=torch.int32, device=logits.device)
    sample_block_kernel[(number, parts)](
        logits, rows.state[SEED], rows.state[POSITION], rows.sampling, rows.sampling[MIN_LOGIT], found, ids,
        WORDS=words, PARTS=parts, PART=VOCAB_BLOCK, num_warps=8,
    )  # fmt: skip
    sample_combine_kernel[(number,)](
        found, ids, rows.sampling, rows.state, rows.stops, rows.ids, rows.logprobs, rows.capacity,
        STOPS=rows.stops.shape[1], PARTS=parts, ROOM=triton.next_power_of_2(parts),
        TOKEN=TOKEN, POSITION=POSITION, LEFT=TOKENS_LEFT, ALIVE=ACTIVE, COUNT=NUM_NEW, num_warps=1,
    )  # fmt: skip
