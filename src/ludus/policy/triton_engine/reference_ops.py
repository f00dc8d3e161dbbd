"""What the kernels work out, said plainly in torch: for a CPU, and to hold the kernels against.

Both modules have the same functions. Norms carry no weight here, because it is in the matrix.
torch is imported at the top, as this module is only ever loaded where a model is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from ludus.policy.triton_engine.batch_state import (
    ACTIVE,
    MIN_LOGIT,
    NUM_NEW,
    POSITION,
    SEED,
    TEMPERATURE,
    TOKEN,
    TOKENS_LEFT,
    BatchState,
)
from ludus.policy.triton_engine.counter_rng import gumbel_noise
from ludus.policy.triton_engine.kv_cache import LayerCache
from ludus.policy.triton_engine.model_shape import ModelShape
from ludus.policy.triton_engine.packed_weights import PackedLayer


def project(x: Any, weight: Any, bias: Any, *, eps: float, dtype: Any) -> Any:
    """The rows of x, normalized, times a matrix."""
    return _linear(_rms_norm(x, eps), weight, bias).to(dtype)


def gated(x: Any, weight: Any, *, eps: float) -> Any:
    """The rows of x, normalized, through both halves of a matrix, the first of which opens."""
    gate, up = _linear(_rms_norm(x, eps), weight).chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(weight.dtype)


def add(x: Any, more: Any, weight: Any, bias: Any) -> None:
    """More times a matrix, added to x where it is."""
    x += _linear(more, weight, bias)


def _rms_norm(x: Any, eps: float) -> Any:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """In the numbers of the matrix, added up in single precision."""
    made = functional.linear(x.to(weight.dtype).float(), weight.float())
    return made if bias is None else made + bias


def store(qkv: Any, layer: PackedLayer, room: LayerCache, blueprint: ModelShape) -> None:
    """The keys and values of each row, put where they belong in the cache."""
    _, keys, values = _split_qkv(qkv, blueprint)
    keys = _rope(keys, layer.k_norm, room, blueprint.eps).to(room.keys.dtype)
    for kept, new in ((room.keys, keys), (room.values, values.to(room.values.dtype))):
        kept[room.slots, :, room.positions] = new


def attend(
    qkv: Any,
    layer: PackedLayer,
    room: LayerCache,
    blueprint: ModelShape,
    *,
    fresh: bool,
    splits: int,
) -> Any:
    """What each row sees of its slot, up to itself. Fresh: what it adds to it is stored first.

    Splits are how many programs share a row, which only a kernel has to know.
    """
    if fresh:
        store(qkv, layer, room, blueprint)
    queries = _rope(_split_qkv(qkv, blueprint)[0], layer.q_norm, room, blueprint.eps)
    queries = (
        queries.to(qkv.dtype)
        .float()
        .unflatten(1, (blueprint.num_kv_heads, blueprint.queries_per_kv_head))
    )
    longest = int(room.positions.max()) + 1
    keys = room.keys[room.slots, :, :longest].float()
    values = room.values[room.slots, :, :longest].float()
    scores = torch.einsum("tkgd,tkld->tkgl", queries, keys) * blueprint.softmax_scale
    hidden = torch.arange(longest, device=qkv.device) > room.positions.unsqueeze(1)
    scores = scores.masked_fill(hidden[:, None, None, :], float("-inf"))
    seen = torch.einsum("tkgl,tkld->tkgd", scores.softmax(-1), values)
    return seen.flatten(1).to(qkv.dtype)


def _split_qkv(qkv: Any, blueprint: ModelShape) -> tuple[Any, Any, Any]:
    heads = qkv.float().unflatten(1, (-1, blueprint.head_dim))
    first, second = blueprint.num_heads, blueprint.num_heads + blueprint.num_kv_heads
    return heads[:, :first], heads[:, first:second], heads[:, second:]


def _rope(heads: Any, norm: Any, room: LayerCache, eps: float) -> Any:
    """Each head normalized, if it is to be, and turned by its position."""
    if norm is not None:
        heads = _rms_norm(heads, eps) * norm
    cos, sin = (table[room.positions].unsqueeze(1) for table in (room.cos, room.sin))
    left, right = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-right, left], dim=-1) * sin


def sample(logits: Any, rows: BatchState) -> None:
    """Choose a token for every row, and move on those that go on."""
    state, heat = rows.state[:, : len(logits)], rows.sampling[:, : len(logits)]
    greedy = (heat[TEMPERATURE] == 0).unsqueeze(1)
    scaled = logits - logits.amax(-1, keepdim=True)
    scaled = scaled / heat[TEMPERATURE].unsqueeze(1).masked_fill(greedy, 1.0)
    noise = gumbel_noise(state[SEED], state[POSITION] + 1, logits.shape[-1]).masked_fill(
        greedy, 0.0
    )
    scores = (scaled + noise).masked_fill(logits < heat[MIN_LOGIT].unsqueeze(1), float("-inf"))
    chosen = scores.argmax(-1)
    logprobs = torch.log_softmax(scaled, -1).gather(-1, chosen.unsqueeze(1)).squeeze(1)
    _advance_rows(state, chosen, logprobs, rows)


def _advance_rows(state: Any, chosen: Any, logprobs: Any, rows: BatchState) -> None:
    alive = state[ACTIVE] > 0
    at = alive.nonzero().squeeze(1)
    places = state[NUM_NEW, at], at
    rows.ids[places], rows.logprobs[places] = chosen[at], logprobs[at]
    state[TOKEN] = torch.where(alive, chosen, state[TOKEN])
    for field, change in ((POSITION, 1), (NUM_NEW, 1), (TOKENS_LEFT, -1)):
        state[field] += change * alive
    stopped = (rows.stops[: len(chosen)] == chosen.unsqueeze(1)).any(1)
    state[ACTIVE] = (alive & (state[TOKENS_LEFT] > 0) & ~stopped).long()
