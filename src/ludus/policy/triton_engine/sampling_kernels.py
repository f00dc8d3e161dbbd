"""Drawing a token for each row, its log-probability, and the row's next step.

The vocabulary is drawn from in parts: each part has its winner, and the best of them is the row's.
Noise is worked out as `noise` says. Only ever import this where there is a GPU.
"""

from __future__ import annotations

import triton.language as tl

from ludus.policy.triton_engine import counter_rng as rule
from ludus.policy.triton_engine.jit import jit_kernel

GOLDEN_RATIO_32 = tl.constexpr(rule.GOLDEN_RATIO_32)
SECOND_KEY_OFFSET = tl.constexpr(rule.SECOND_KEY_OFFSET)
MIX_MULTIPLIER_1 = tl.constexpr(rule.MIX_MULTIPLIER_1)
MIX_MULTIPLIER_2 = tl.constexpr(rule.MIX_MULTIPLIER_2)
MAX_UNIFORM = tl.constexpr(rule.MAX_UNIFORM)
SERIES_THRESHOLD = tl.constexpr(rule.SERIES_THRESHOLD)


@jit_kernel
def _mix32(bits: tl.tensor) -> tl.tensor:
    bits = (bits ^ (bits >> 16)) * tl.full([1], MIX_MULTIPLIER_1, tl.uint32)
    bits = (bits ^ (bits >> 15)) * tl.full([1], MIX_MULTIPLIER_2, tl.uint32)
    return bits ^ (bits >> 16)


@jit_kernel
def _gumbel_noise(seed: tl.tensor, position: tl.tensor, token: tl.tensor) -> tl.tensor:
    golden = tl.full([1], GOLDEN_RATIO_32, tl.uint32)
    low, high = (seed & 0xFFFFFFFF).to(tl.uint32), ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    first = _mix32(_mix32((position.to(tl.uint32) * golden) ^ low) ^ high)
    second = _mix32(first + tl.full([1], SECOND_KEY_OFFSET, tl.uint32))
    mixed = _mix32(_mix32(token.to(tl.uint32) * golden + first) ^ second)
    share = (mixed.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    share = tl.minimum(share, MAX_UNIFORM)
    series = share * (1.0 + share * (0.5 + share / 3.0))
    return -tl.log(tl.where(share < SERIES_THRESHOLD, series, -tl.log(1.0 - share)))


@jit_kernel
def sample_block_kernel(
    logits: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    temperatures: tl.tensor,
    least: tl.tensor,
    found: tl.tensor,
    ids: tl.tensor,
    WORDS: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
) -> None:
    """The winner among a part of the vocabulary, and what the part adds to the softmax.

    All is said against the part's largest logit, so that a small temperature makes no infinities.
    """
    row, part = tl.program_id(0), tl.program_id(1)
    token = part * PART + tl.arange(0, PART)
    known = token < WORDS
    values = tl.load(logits + row * WORDS + token, mask=known, other=float("-inf"))
    temperature = tl.load(temperatures + row)
    heat = tl.where(temperature == 0.0, 1.0, temperature)
    top = tl.max(values, axis=0)
    scaled = (values - top) / heat
    noise = _gumbel_noise(tl.load(seeds + row), tl.load(positions + row) + 1, token)
    score = tl.where(temperature == 0.0, scaled, scaled + noise)
    score = tl.where(known & (values >= tl.load(least + row)), score, float("-inf"))
    best = tl.max(score, axis=0)
    # The first of equals; what is not a number equals nothing, and must not lead astray.
    winner = tl.min(tl.where(score == best, token, WORDS - 1), axis=0)
    spot = found + (row * PARTS + part) * 4
    tl.store(spot, top)
    tl.store(spot + 1, tl.sum(tl.exp(scaled), axis=0))
    tl.store(spot + 2, best)
    tl.store(spot + 3, tl.load(logits + row * WORDS + winner))
    tl.store(ids + row * PARTS + part, winner)


@jit_kernel
def sample_combine_kernel(
    found: tl.tensor,
    ids: tl.tensor,
    temperatures: tl.tensor,
    state: tl.tensor,
    stops: tl.tensor,
    said: tl.tensor,
    logprobs: tl.tensor,
    capacity: tl.tensor,
    STOPS: tl.constexpr,
    PARTS: tl.constexpr,
    ROOM: tl.constexpr,
    TOKEN: tl.constexpr,
    POSITION: tl.constexpr,
    LEFT: tl.constexpr,
    ALIVE: tl.constexpr,
    COUNT: tl.constexpr,
) -> None:
    """The best of the parts' winners becomes the row's next token, if the row goes on."""
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    heat = tl.where(temperature == 0.0, 1.0, temperature)
    part = tl.arange(0, ROOM)
    known = part < PARTS
    spot = found + (row * PARTS + part) * 4
    tops = tl.load(spot, mask=known, other=float("-inf"))
    top = tl.max(tops, axis=0)
    shift = (tops - top) / heat
    sums = tl.load(spot + 1, mask=known, other=0.0)
    total = tl.sum(tl.where(known, sums * tl.exp(shift), 0.0), axis=0)
    score = tl.load(spot + 2, mask=known, other=float("-inf")) + shift
    best = tl.max(score, axis=0)
    winner = tl.min(tl.where(score == best, part, PARTS - 1), axis=0)
    token = tl.load(ids + row * PARTS + winner).to(tl.int64)
    logit = tl.load(found + (row * PARTS + winner) * 4 + 3)
    logprob = (logit - top) / heat - tl.log(total)

    alive = tl.load(state + ALIVE * capacity + row)
    goes = alive > 0
    count = tl.load(state + COUNT * capacity + row)
    left = tl.load(state + LEFT * capacity + row) - 1
    position = tl.load(state + POSITION * capacity + row)
    stop = tl.load(stops + row * STOPS + tl.arange(0, STOPS))
    hit = tl.max((stop == token).to(tl.int32), axis=0)
    tl.store(said + count * capacity + row, token, mask=goes)
    tl.store(logprobs + count * capacity + row, logprob, mask=goes)
    tl.store(state + TOKEN * capacity + row, token, mask=goes)
    tl.store(state + POSITION * capacity + row, position + 1, mask=goes)
    tl.store(state + COUNT * capacity + row, count + 1, mask=goes)
    tl.store(state + LEFT * capacity + row, left, mask=goes)
    on = ((left > 0) & (hit == 0)).to(tl.int64)
    tl.store(state + ALIVE * capacity + row, on, mask=goes)
