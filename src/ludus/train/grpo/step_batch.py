"""What a step trains on: the tokens of its episodes, and a value per sampled token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

from ludus.train.grpo.advantages import TurnValues
from ludus.train.grpo.packed_groups import EpisodeTokens

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from ludus.data.episode import Episode


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Episodes of this process; neighbours may share a prompt."""

    source: tuple[Episode, ...]
    episodes: tuple[EpisodeTokens, ...]
    lengths: Tensor
    """Sampled tokens of each episode; shape (episodes,), as float32 on the CPU."""
    advantages: Tensor
    """Per sampled token, in the order of episodes; so are the tensors below."""
    sampling_logprobs: Tensor
    weights: Tensor
    """The weight of the token in the loss of the step, summed over all processes."""

    @classmethod
    def build(
        cls, source: Sequence[Episode], episodes: Sequence[EpisodeTokens],
        advantages: Sequence[TurnValues], weights: Tensor, device: torch.device,
    ) -> StepBatch:  # fmt: skip
        """Spread the advantages of turns and the weights of episodes over tokens."""
        import numpy as np
        import torch

        lengths = [len(each.logprobs) for each in episodes]
        pairs = zip(episodes, advantages, strict=True)
        by_token = [spread_over_tokens(values, each.sampled) for each, values in pairs]
        logprobs = [value for each in episodes for value in each.logprobs]
        counts = torch.tensor(lengths)
        return cls(
            tuple(source), tuple(episodes), counts.float(),
            torch.from_numpy(np.concatenate(by_token or [np.zeros(0, np.float32)])).to(device),
            torch.tensor(logprobs, dtype=torch.float32, device=device),
            weights.repeat_interleave(counts).to(device),
        )  # fmt: skip

    def placeholder(self) -> StepBatch:
        """A batch of two tokens, neither of them sampled, for ranks that have no rows left."""
        tokens, empty = EpisodeTokens((0, 0), (0, 0), ()), self.advantages[:0]
        return StepBatch((), (tokens,), self.lengths[:0], empty, empty, empty)

    @property
    def has_signal(self) -> bool:
        return bool(self.advantages.any())

    @property
    def episode_index(self) -> Tensor:
        """The episode of each sampled token."""
        import torch

        counts = self.lengths.long().to(self.advantages.device)
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)

    def part(self, start: int, stop: int) -> StepBatch:
        """The episodes from `start` up to `stop`."""
        first, count = int(self.lengths[:start].sum()), int(self.lengths[start:stop].sum())
        tokens = slice(first, first + count)
        return StepBatch(
            self.source[start:stop], self.episodes[start:stop], self.lengths[start:stop],
            self.advantages[tokens], self.sampling_logprobs[tokens], self.weights[tokens],
        )  # fmt: skip

    def only(self, kept: Sequence[bool]) -> StepBatch:
        """The episodes whose flag is set."""
        import torch

        episodes = torch.tensor(kept, dtype=torch.bool)
        tokens = episodes.repeat_interleave(self.lengths.long()).to(self.advantages.device)
        return StepBatch(
            tuple(compress(self.source, kept)), tuple(compress(self.episodes, kept)),
            self.lengths[episodes], self.advantages[tokens], self.sampling_logprobs[tokens],
            self.weights[tokens],
        )  # fmt: skip


def spread_over_tokens(values: TurnValues, sampled: Sequence[int]) -> NDArray[np.float32]:
    """Give each sampled token the value of its turn.

    The environment's tokens separate turns. A single value applies to all turns; without values
    all tokens get 0.
    """
    import numpy as np

    mask = np.asarray(sampled, dtype=bool)
    if not values or not mask.any():
        return np.zeros(int(mask.sum()), np.float32)
    starts = mask & ~np.concatenate([[False], mask[:-1]])
    turns = np.cumsum(starts)[mask] - 1
    table = np.asarray(values, np.float32)
    if len(table) == 1:
        return np.full(len(turns), table[0], np.float32)
    # Turns in which nothing was credited have 0.
    padded = np.zeros(max(len(table), int(turns[-1]) + 1), np.float32)
    padded[: len(table)] = table
    spread: NDArray[np.float32] = padded[turns]
    return spread


def choose_evenly(count: int, most: int) -> list[bool]:
    """Choose at most `most` of `count` items, evenly spread; True for each chosen one."""
    if count <= most:
        return [True] * count
    return [(at + 1) * most // count > at * most // count for at in range(count)]
