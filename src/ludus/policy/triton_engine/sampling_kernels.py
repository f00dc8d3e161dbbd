"""Gumbel-max sampling over the vocabulary in two kernels, and the update of each row's state.

The first kernel handles one block of the vocabulary: it finds the token with the largest
logit / temperature + Gumbel noise, and the block's share of the softmax denominator. The second
combines the blocks of a row (log-sum-exp), and advances the row. Noise as in `reference_ops`.

Shapes: logits [rows, V], block_stats [rows, BLOCKS, 4], block_ids [rows, BLOCKS], temperatures and
min_logits [capacity], state [8, capacity], stops [capacity, STOPS], out_ids and out_logprobs
[steps, capacity]. Import this only if there is a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ludus.policy.triton_engine import reference_ops

GOLDEN_RATIO_32 = tl.constexpr(reference_ops.GOLDEN_RATIO_32)
SECOND_KEY_OFFSET = tl.constexpr(reference_ops.SECOND_KEY_OFFSET)
MIX_MULTIPLIER_1 = tl.constexpr(reference_ops.MIX_MULTIPLIER_1)
MIX_MULTIPLIER_2 = tl.constexpr(reference_ops.MIX_MULTIPLIER_2)
MAX_UNIFORM = tl.constexpr(reference_ops.MAX_UNIFORM)
SERIES_THRESHOLD = tl.constexpr(reference_ops.SERIES_THRESHOLD)


@triton.jit
def _mix32_kernel(bits: tl.tensor) -> tl.tensor:
    """Integer hash of 32 bits, as in `reference_ops`."""
    bits = (bits ^ (bits >> 16)) * tl.full([1], MIX_MULTIPLIER_1, tl.uint32)
    bits = (bits ^ (bits >> 15)) * tl.full([1], MIX_MULTIPLIER_2, tl.uint32)
    return bits ^ (bits >> 16)


@triton.jit
def _gumbel_noise(seed: tl.tensor, position: tl.tensor, token: tl.tensor) -> tl.tensor:
    golden = tl.full([1], GOLDEN_RATIO_32, tl.uint32)
    low, high = (seed & 0xFFFFFFFF).to(tl.uint32), ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    key_1 = _mix32_kernel(_mix32_kernel((position.to(tl.uint32) * golden) ^ low) ^ high)
    key_2 = _mix32_kernel(key_1 + tl.full([1], SECOND_KEY_OFFSET, tl.uint32))
    bits = _mix32_kernel(_mix32_kernel(token.to(tl.uint32) * golden + key_1) ^ key_2)
    u = (bits.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    u = tl.minimum(u, MAX_UNIFORM)
    series = u * (1.0 + u * (0.5 + u / 3.0))
    return -tl.log(tl.where(u < SERIES_THRESHOLD, series, -tl.log(1.0 - u)))


@triton.jit
def sample_block_kernel(
    logits: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    temperatures: tl.tensor,
    min_logits: tl.tensor,
    block_stats: tl.tensor,
    block_ids: tl.tensor,
    V: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:
    """Best token of one vocabulary block, and the block's softmax sum. Grid: (rows, BLOCKS).

    block_stats holds the block's largest logit, the sum of exponentials, the best score and the
    logit of the best token. Logits are taken relative to the block's maximum before they are
    divided by the temperature, so that a small temperature does not overflow.
    """
    row, block = tl.program_id(0), tl.program_id(1)
    token = block * BLOCK_V + tl.arange(0, BLOCK_V)
    in_vocab = token < V
    logit = tl.load(logits + row * V + token, mask=in_vocab, other=float("-inf"))
    temperature = tl.load(temperatures + row)
    greedy = temperature == 0.0
    divisor = tl.where(greedy, 1.0, temperature)
    m_block = tl.max(logit, axis=0)
    scaled = (logit - m_block) / divisor
    noise = _gumbel_noise(tl.load(seeds + row), tl.load(positions + row) + 1, token)
    score = tl.where(greedy, scaled, scaled + noise)
    score = tl.where(in_vocab & (logit >= tl.load(min_logits + row)), score, float("-inf"))
    best_score = tl.max(score, axis=0)
    # The first of equal scores. NaN equals nothing: V - 1 keeps the index inside the vocabulary.
    best_token = tl.min(tl.where(score == best_score, token, V - 1), axis=0)
    stats_ptr = block_stats + (row * BLOCKS + block) * 4
    tl.store(stats_ptr, m_block)
    tl.store(stats_ptr + 1, tl.sum(tl.exp(scaled), axis=0))
    tl.store(stats_ptr + 2, best_score)
    tl.store(stats_ptr + 3, tl.load(logits + row * V + best_token))
    tl.store(block_ids + row * BLOCKS + block, best_token)


@triton.jit
def sample_combine_kernel(
    block_stats: tl.tensor,
    block_ids: tl.tensor,
    temperatures: tl.tensor,
    state: tl.tensor,
    stops: tl.tensor,
    out_ids: tl.tensor,
    out_logprobs: tl.tensor,
    capacity: tl.tensor,
    STOPS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCKS_PADDED: tl.constexpr,
    TOKEN: tl.constexpr,
    POSITION: tl.constexpr,
    TOKENS_LEFT: tl.constexpr,
    ACTIVE: tl.constexpr,
    NUM_NEW: tl.constexpr,
) -> None:
    """Choose among the blocks' best tokens; if the row is active, append it. Grid: (rows,)."""
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    divisor = tl.where(temperature == 0.0, 1.0, temperature)
    block = tl.arange(0, BLOCKS_PADDED)
    in_range = block < BLOCKS
    stats_ptr = block_stats + (row * BLOCKS + block) * 4
    m_block = tl.load(stats_ptr, mask=in_range, other=float("-inf"))
    m_row = tl.max(m_block, axis=0)
    shift = (m_block - m_row) / divisor
    block_sum = tl.load(stats_ptr + 1, mask=in_range, other=0.0)
    denominator = tl.sum(tl.where(in_range, block_sum * tl.exp(shift), 0.0), axis=0)
    score = tl.load(stats_ptr + 2, mask=in_range, other=float("-inf")) + shift
    best_score = tl.max(score, axis=0)
    best_block = tl.min(tl.where(score == best_score, block, BLOCKS - 1), axis=0)
    token = tl.load(block_ids + row * BLOCKS + best_block).to(tl.int64)
    logit = tl.load(block_stats + (row * BLOCKS + best_block) * 4 + 3)
    logprob = (logit - m_row) / divisor - tl.log(denominator)

    active = tl.load(state + ACTIVE * capacity + row) > 0
    step = tl.load(state + NUM_NEW * capacity + row)
    tokens_left = tl.load(state + TOKENS_LEFT * capacity + row) - 1
    position = tl.load(state + POSITION * capacity + row)
    stop = tl.load(stops + row * STOPS + tl.arange(0, STOPS))
    hit_stop = tl.max((stop == token).to(tl.int32), axis=0)
    tl.store(out_ids + step * capacity + row, token, mask=active)
    tl.store(out_logprobs + step * capacity + row, logprob, mask=active)
    tl.store(state + TOKEN * capacity + row, token, mask=active)
    tl.store(state + POSITION * capacity + row, position + 1, mask=active)
    tl.store(state + NUM_NEW * capacity + row, step + 1, mask=active)
    tl.store(state + TOKENS_LEFT * capacity + row, tokens_left, mask=active)
    still_active = ((tokens_left > 0) & (hit_stop == 0)).to(tl.int64)
    tl.store(state + ACTIVE * capacity + row, still_active, mask=active)
