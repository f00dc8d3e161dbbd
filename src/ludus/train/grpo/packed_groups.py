"""Episodes of a step packed into one sequence without padding; a group's prompt is in it once.

    | prompt of group 1 | prompt of group 2 | ... | episode 1 | episode 2 | ...

An episode attends to the prompt of its group and to itself, so log-probabilities and gradients are
as for separate rows. Its segment starts with a copy of the prompt's last token, because the first
sampled token is predicted from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ludus.data.episode import Episode
from ludus.train.data.rows import IGNORE_INDEX

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor
    from transformers import PreTrainedConfig

    Tokens = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EpisodeTokens:
    """The tokens of an episode up to the last one that the model sampled."""

    ids: tuple[int, ...]
    sampled: tuple[int, ...]
    """1 for tokens that the model sampled."""
    logprobs: tuple[float, ...]
    """The decoder's log-probabilities of the sampled tokens."""

    @classmethod
    def of(cls, episode: Episode) -> EpisodeTokens:
        """The tokens to pack: up to the last sampled one; none without a sampled one."""
        tokens = episode.tokens
        if tokens is None or 1 not in tokens.mask:
            return cls((), (), ())
        end = len(tokens.mask) - tokens.mask[::-1].index(1)
        pairs = zip(tokens.logprobs, tokens.mask, strict=True)
        logprobs = tuple(logprob or 0.0 for logprob, sampled in pairs if sampled)
        return cls(tokens.ids[:end], tokens.mask[:end], logprobs)

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.ids[: self.sampled.index(1) if self.logprobs else 1]


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """A packed sequence. Tensors of shape (1, tokens), unless they say otherwise."""

    input_ids: Tensor
    position_ids: Tensor
    """Positions within the episode."""
    labels: Tensor
    """The next token if it is sampled; `IGNORE_INDEX` elsewhere. Labels are in the order of
    episodes and, within them, of tokens."""
    segments: Tensor
    """Boundaries of prompts and episodes, from 0 to the number of tokens; int32 of shape (n,)."""
    prompts: Tensor
    """Boundaries of the groups' prompts; int32 of shape (groups + 1,)."""
    members: Tensor
    """Boundaries of the groups' episodes, counted from the end of the prompts; same shape."""
    prompt_tokens: int
    longest_segment: int
    """Tokens of the longest prompt or episode."""
    longest_prompt: int
    longest_group: int
    """Tokens of the largest group's episodes together."""

    def attention_mask(self) -> Tensor:
        """Which positions attend to which, of shape (1, 1, tokens, tokens)."""
        import torch

        size, device = self.input_ids.shape[1], self.input_ids.device
        positions = torch.arange(size, device=device)
        segment = torch.bucketize(positions, self.segments[1:].long(), right=True)
        mask = (segment[:, None] == segment) & (positions[:, None] >= positions)
        split = self.prompt_tokens
        prompt = torch.bucketize(positions[:split], self.prompts[1:].long(), right=True)
        member = torch.bucketize(positions[split:] - split, self.members[1:].long(), right=True)
        mask[split:, :split] = member[:, None] == prompt
        return mask[None, None]


def packed_length(episodes: Sequence[EpisodeTokens]) -> int:
    """Tokens of the sequence that `pack_groups` makes of these episodes."""
    return sum(
        len(prompt) - 1 + sum(len(each.ids) - len(prompt) for each in members)
        for prompt, members in _group_by_prompt(episodes)
    )


def pack_groups(episodes: Sequence[EpisodeTokens], device: torch.device) -> PackedGroups:
    """Pack episodes with prompts of at least two tokens; only neighbours share a prompt."""
    import numpy as np
    import torch

    groups = _group_by_prompt(episodes)
    ids: list[Tokens] = [prompt[:-1] for prompt, _ in groups]
    positions: list[Tokens] = [np.arange(len(each)) for each in ids]
    labels: list[Tokens] = [np.full(len(each), IGNORE_INDEX) for each in ids]
    prompts = [0, *accumulate(map(len, ids))]
    members = [0]
    for prompt, group in groups:
        shared = len(prompt) - 1
        for each in group:
            following = np.asarray(each.ids[len(prompt) :])
            sampled = np.asarray(each.sampled[len(prompt) :], dtype=bool)
            ids.append(each.ids[shared:-1])
            positions.append(np.arange(shared, len(each.ids) - 1))
            labels.append(np.where(sampled, following, IGNORE_INDEX))
        members.append(members[-1] + sum(len(each.ids) - len(prompt) for each in group))
    segments = [0, *accumulate(map(len, ids))]

    def tensor(parts: Sequence[Tokens]) -> Tensor:
        joined = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts or [[]]])
        return torch.from_numpy(joined).to(device)[None]

    def bounds(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    def longest(values: Sequence[int]) -> int:
        return max((stop - start for start, stop in pairwise(values)), default=0)

    return PackedGroups(
        tensor(ids), tensor(positions), tensor(labels), bounds(segments), bounds(prompts),
        bounds(members), prompts[-1], longest(segments), longest(prompts), longest(members),
    )  # fmt: skip


def supports_packing(config: PreTrainedConfig) -> bool:
    """Whether episodes may be packed for a model: full attention in all layers, relative positions.

    Packing would change recurrent layers, and sliding windows, which would only be noticed in
    episodes longer than one.
    """
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        full_attention = set(layer_types) == {"full_attention"}
    else:
        windows = ("sliding_window", "attention_chunk_size")
        full_attention = not any(getattr(config, name, None) for name in windows)
    text_only = config.get_text_config() is config
    return full_attention and text_only and getattr(config, "rope_parameters", None) is not None


def _group_by_prompt(
    episodes: Sequence[EpisodeTokens],
) -> list[tuple[tuple[int, ...], list[EpisodeTokens]]]:
    """Neighbours with the same prompt; episodes without tokens are left out."""
    groups: list[tuple[tuple[int, ...], list[EpisodeTokens]]] = []
    for each in episodes:
        if not each.ids:
            continue
        if not groups or groups[-1][0] != each.prompt:
            groups.append((each.prompt, []))
        groups[-1][1].append(each)
    return groups
