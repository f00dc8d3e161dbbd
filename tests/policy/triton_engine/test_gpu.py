"""The kernels and graphs on a real GPU: against the reference, and against transformers."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch

from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.triton_engine import reference_ops
from ludus.policy.triton_engine.batch_state import BatchState, RowState
from ludus.policy.triton_engine.kv_cache import LayerCache
from ludus.policy.triton_engine.model_shape import ModelShape
from ludus.policy.triton_engine.packed_weights import PackedLayer
from policy.forwards import GREEDY, fresh_logprobs, prompt, request
from policy.triton_engine.families import engine_of, fresh, generated, said

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="kernels need a CUDA GPU and triton",
)
HALF = 0.02
"""How far numbers of bfloat16 may lie off, against the largest."""
FAR = 0.4
"""How far log-probabilities may lie off after all layers; of other weights they do by some 4."""


def kernels() -> Any:
    from ludus.policy.triton_engine import kernels

    return kernels


def near(ours: Any, theirs: Any, bound: float = HALF) -> bool:
    apart = (ours.float() - theirs.float()).abs().max()
    return bool(apart <= bound * theirs.float().abs().max().clamp(min=1.0))


def some(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(shape, device="cuda").to(dtype)


@pytest.mark.parametrize("rows", [1, 33, 64, 2048])
@pytest.mark.parametrize(("columns", "width"), [(960, 576), (100, 40)])
def test_products_are_those_of_the_reference(rows: int, columns: int, width: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = some(rows, width, dtype=torch.float32), some(columns, width), some(columns)
    weight /= width**0.5
    how: dict[str, Any] = {"eps": 1e-5, "dtype": torch.float32}
    made = [each.project(x, weight, bias.float(), **how) for each in (kernels(), reference_ops)]
    assert near(*made)
    assert near(kernels().gated(x, weight, eps=1e-5), reference_ops.gated(x, weight, eps=1e-5))
    sums = [some(rows, columns, dtype=torch.float32)] * 2
    sums[1] = sums[0].clone()
    for each, total in zip((kernels(), reference_ops), sums, strict=True):
        each.add(total, x.bfloat16(), weight, None)
    assert near(*sums)


def room_of(shape: ModelShape, positions: list[int]) -> LayerCache:
    torch.manual_seed(1)
    size = len(positions) + 1, shape.num_kv_heads, 2048, shape.head_dim
    turns = torch.rand(2048, shape.head_dim // 2, device="cuda").repeat(1, 2)
    slots = torch.randperm(len(positions), device="cuda")
    return LayerCache(some(*size), some(*size), turns.cos(), turns.sin(), slots,
                torch.tensor(positions, device="cuda"))  # fmt: skip


@pytest.mark.parametrize("fresh_rows", [True, False])
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "normed"),
    [(9, 3, 64, False), (4, 4, 16, False), (16, 2, 128, True)],
)
def test_attention_is_that_of_the_reference(
    heads: int, kv_heads: int, size: int, normed: bool, splits: int, fresh_rows: bool
) -> None:
    shape = ModelShape(1, 64, 64, heads, kv_heads, size, 9, 1e-5, size**-0.5, normed, 2048)
    norms = [torch.rand(size, device="cuda") + 0.5 if normed else None for _ in range(2)]
    layer = PackedLayer(None, None, norms[0], norms[1], None, None, None, None)
    positions = [0, 1, 63, 64, 65, 400, 2047]
    qkv = some(len(positions), (heads + 2 * kv_heads) * size)
    rooms, made = [], []
    for each in (kernels(), reference_ops):
        room = room_of(shape, positions)
        if not fresh_rows:
            each.store(qkv, layer, room, shape)
        made.append(each.attend(qkv, layer, room, shape, fresh=fresh_rows, splits=splits))
        rooms.append(room)
    assert near(*made) and all(near(*pair) for pair in [
        (rooms[0].keys, rooms[1].keys), (rooms[0].values, rooms[1].values)])  # fmt: skip


def test_samples_are_those_of_the_reference() -> None:
    torch.manual_seed(2)
    logits = some(64, 49152, dtype=torch.float32) * 3
    line = RowState(0, 0, 0, 0, 3, 1.0, 1.0, 0, ())
    lines = [
        replace(line, seed=7919 * at - 2**40, position=at, tokens_left=1 + at % 4, stops=(at,),
                temperature=(0.0, 0.7, 1.0, 1.5)[at % 4])
        for at in range(64)
    ]  # fmt: skip
    states = []
    for each in (kernels(), reference_ops):
        rows = BatchState(64, stops=8, device="cuda")
        rows.load(lines, scratch_slot=1)
        for _ in range(4):
            each.sample(logits, rows)
        states.append(rows)
    ours, theirs = states
    assert torch.equal(ours.ids, theirs.ids) and torch.equal(ours.state, theirs.state)
    assert near(ours.logprobs, theirs.logprobs, 1e-5)


def closest(model: Any, ids: tuple[int, ...], reply: Completion) -> bool:
    """Whether each token is the likeliest, or as good as that in the model's own eyes."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*ids, *reply.ids]], device="cuda")).logits[0].float()
    rows = logits[len(ids) - 1 : -1]
    chosen = rows.gather(1, torch.tensor(reply.ids, device="cuda").unsqueeze(1)).squeeze(1)
    return bool((rows.amax(1) - chosen <= 0.15 * rows.std(1)).all())


@pytest.mark.parametrize("kind", ["llama", "llama, biased", "qwen3"])
def test_replies_are_the_models_own_in_bfloat16(kind: str) -> None:
    model = fresh(kind, max_position_embeddings=512).to("cuda")
    engine = engine_of(model)
    prompts = [prompt(length, seed=length) for length in (3, 90, 1, 170, 33)]
    greedy = said(engine, [request(ids, sampling=GREEDY, max_tokens=30) for ids in prompts])
    assert all(closest(model, *pair) for pair in zip(prompts, greedy, strict=True))
    for ids in prompts:
        (reply,) = said(engine, [request(ids, sampling=SamplingParams(0.8), max_tokens=30)])
        expected = fresh_logprobs(model, ids, reply.ids, temperature=0.8)
        assert reply.logprobs == pytest.approx(expected, abs=FAR)


@pytest.mark.parametrize("kind", ["llama", "llama, biased", "qwen3"])
def test_greedy_replies_in_float32_are_those_of_generate(kind: str) -> None:
    model = fresh(kind, max_position_embeddings=512).to("cuda")
    engine = engine_of(model, dtype=torch.float32)
    prompts = [prompt(length, seed=length) for length in (3, 90, 1, 170, 33)]
    asked = [request(ids, sampling=GREEDY, max_tokens=30) for ids in prompts]
    for ids, reply in zip(prompts, said(engine, asked), strict=True):
        assert reply.ids == generated(model, ids, tokens=30)


def test_graphs_go_on_being_right_after_the_model_has_learned() -> None:
    model, ids = fresh(max_position_embeddings=512).to("cuda"), prompt(40)
    engine = engine_of(model)
    asked = [request(ids, seed=seed, max_tokens=40, stop_token_ids=()) for seed in range(20)]
    first, again = said(engine, asked), said(engine, asked)
    assert [reply.ids for reply in first] == [reply.ids for reply in again]
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(torch.linspace(0.3, 1.7, weight.shape[-1], device="cuda"))
    engine.refresh()
    apart = []
    for reply in said(engine, asked):
        expected = fresh_logprobs(model, ids, reply.ids)
        apart += [abs(a - b) for a, b in zip(reply.logprobs, expected, strict=True)]
    # Weights that are so far apart leave bfloat16 little to agree on, but on most tokens it does.
    assert fmean(apart) < 0.15 and max(apart) < 1.5


def test_who_comes_late_joins_and_the_cache_grows_under_way() -> None:
    model = fresh(max_position_embeddings=2048).to("cuda")
    engine = engine_of(model)
    late = [
        request(prompt(700, seed=n), seed=n, max_tokens=20, stop_token_ids=()) for n in range(5)
    ]
    told: dict[int, Completion] = {}

    def more(room: int) -> list[Request]:
        return [late.pop(0)] if late else []

    asked = [request(prompt(9), seed=9, max_tokens=60, stop_token_ids=()), *late]
    engine.run(asked[:1], told.__setitem__, poll_requests=more)
    for at, each in enumerate(asked):
        expected = fresh_logprobs(model, each.ids, told[at].ids)
        assert told[at].logprobs == pytest.approx(expected, abs=FAR)


def test_top_k_and_top_p_hold_on_the_device_too() -> None:
    model = fresh(max_position_embeddings=512).to("cuda")
    sampling = SamplingParams(1.0, top_k=1)
    ids = prompt(20)
    (cut,) = said(engine_of(model), [request(ids, sampling=sampling, max_tokens=20)])
    assert closest(model, ids, cut)
