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

from ludus.policy.fast.attention_kernels import attention, joined, storage
from ludus.policy.fast.blueprint import Blueprint
from ludus.policy.fast.cache import Room
from ludus.policy.fast.matrix_kernels import gated_product, product
from ludus.policy.fast.rows import ALIVE, COUNT, LEAST, LEFT, POSITION, SEED, TOKEN, Rows
from ludus.policy.fast.sampling_kernels import candidates, choice
from ludus.policy.fast.weights import Layer

TILES = ((64, 128), (64, 32), (32, 16), (16, 16))
"""Rows and columns that one program works out, large ones first: they read the least."""
ENOUGH = 100
"""Programs that keep a large GPU busy."""
BLOCK = 64
"""Keys that are looked at in one go."""
PART = 4096
"""Of the vocabulary, what one program draws from."""


def project(x: Any, weight: Any, bias: Any, *, eps: float, dtype: Any) -> Any:
    out = torch.empty(len(x), len(weight), dtype=dtype, device=x.device)
    _product(x, weight, bias, out, eps=eps, norm=True, add=False)
    return out


def add(x: Any, more: Any, weight: Any, bias: Any) -> None:
    _product(more, weight, bias, x, eps=0.0, norm=False, add=True)


def _product(
    x: Any, weight: Any, bias: Any, out: Any, *, eps: float, norm: bool, add: bool
) -> None:
    rows, (columns, width) = len(x), weight.shape
    tall, wide = _tile(rows, columns)
    product[_grid(rows, tall, columns, wide)](
        x, weight, weight if bias is None else bias, out, rows, eps,
        COLUMNS=columns, WIDTH=width, NORM=norm, BIAS=bias is not None, ADD=add,
        TALL=tall, WIDE=wide, **_pace(width, tall * wide),
    )  # fmt: skip


def gated(x: Any, weight: Any, *, eps: float) -> Any:
    rows, columns, width = len(x), len(weight) // 2, weight.shape[1]
    out = torch.empty(rows, columns, dtype=weight.dtype, device=x.device)
    tall, wide = _tile(rows, columns)
    wide = min(wide, 64)  # There are two products to be kept at once.
    gated_product[_grid(rows, tall, columns, wide)](
        x, weight, out, rows, eps,
        COLUMNS=columns, WIDTH=width, TALL=tall, WIDE=wide, **_pace(width, tall * wide),
    )  # fmt: skip
    return out


def _tile(rows: int, columns: int) -> tuple[int, int]:
    """The largest of which there are enough to keep all processors busy."""
    for tall, wide in TILES:
        if triton.cdiv(rows, tall) * triton.cdiv(columns, wide) >= ENOUGH:
            return tall, wide
    return TILES[-1]


def _grid(rows: int, tall: int, columns: int, wide: int) -> tuple[int, int]:
    """Programs of the same columns come one after the other, and find the matrix in the cache."""
    return triton.cdiv(rows, tall), triton.cdiv(columns, wide)


def _pace(width: int, area: int) -> dict[str, int]:
    """How much is read in one go, how far ahead, and by how many."""
    deep = 128 if area <= 512 and width % 128 == 0 else 64
    while deep > 16 and width % deep:
        deep //= 2
    small = area <= 512
    return {"DEEP": deep, "num_warps": 2 if small else 4, "num_stages": 4 if small else 3}


def store(qkv: Any, layer: Layer, room: Room, blueprint: Blueprint) -> None:
    storage[(len(qkv), blueprint.kv_heads)](
        qkv, *_turns(layer, room), room.keys, room.values, room.slots, room.positions,
        blueprint.eps, room.keys.stride(0), room.keys.stride(1), **_shape(blueprint), num_warps=1,
    )  # fmt: skip


def attend(
    qkv: Any, layer: Layer, room: Room, blueprint: Blueprint, *, fresh: bool, splits: int
) -> Any:
    rows, heads, size = len(qkv), blueprint.heads, blueprint.head_dim
    out = torch.empty(rows, heads * size, dtype=qkv.dtype, device=qkv.device)
    parts, marks = out, out
    if splits > 1:
        parts = torch.empty(rows, heads, splits, size, dtype=torch.float32, device=qkv.device)
        marks = torch.empty(rows, heads, splits, 2, dtype=torch.float32, device=qkv.device)
    attention[(rows, blueprint.kv_heads, splits)](
        qkv, *_turns(layer, room), room.keys, room.values, room.slots, room.positions,
        out, parts, marks, blueprint.scale, blueprint.eps,
        room.keys.stride(0), room.keys.stride(1), **_shape(blueprint),
        GROUP=max(16, triton.next_power_of_2(blueprint.group)),
        FRESH=fresh, SPLITS=splits, BLOCK=BLOCK, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        joined[(rows, heads)](parts, marks, out, HEADS=heads, DIM=size, SPLITS=splits, num_warps=1)
    return out


def _turns(layer: Layer, room: Room) -> tuple[Any, Any, Any, Any]:
    """The tables of rotations and the norms; where there is none, anything will do for it."""
    if layer.q_norm is None:
        return room.cos, room.sin, room.cos, room.cos
    return room.cos, room.sin, layer.q_norm, layer.k_norm


def _shape(blueprint: Blueprint) -> dict[str, Any]:
    return {
        "HEADS": blueprint.heads,
        "KV_HEADS": blueprint.kv_heads,
        "DIM": blueprint.head_dim,
        "NORMED": blueprint.normed,
    }


def sample(logits: Any, rows: Rows) -> None:
    number, words = logits.shape
    parts = triton.cdiv(words, PART)
    found = torch.empty(number, parts, 4, dtype=torch.float32, device=logits.device)
    ids = torch.empty(number, parts, dtype=torch.int32, device=logits.device)
    candidates[(number, parts)](
        logits, rows.state[SEED], rows.state[POSITION], rows.heat, rows.heat[LEAST], found, ids,
        WORDS=words, PARTS=parts, PART=PART, num_warps=8,
    )  # fmt: skip
    choice[(number,)](
        found, ids, rows.heat, rows.state, rows.stops, rows.ids, rows.logprobs, rows.capacity,
        STOPS=rows.stops.shape[1], PARTS=parts, ROOM=triton.next_power_of_2(parts),
        TOKEN=TOKEN, POSITION=POSITION, LEFT=LEFT, ALIVE=ALIVE, COUNT=COUNT, num_warps=1,
    )  # fmt: skip
