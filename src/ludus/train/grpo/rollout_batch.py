"""The batch of a step: episodes as TRL's `rollout_func` returns them, and the rows trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.data.episode import Episode

_LEFT_PADDED = ("prompt_ids", "prompt_mask")
_RIGHT_PADDED = (
    "completion_ids", "completion_mask", "tool_mask", "old_per_token_logps", "advantages",
    "ref_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio",
)  # fmt: skip

Batch = dict[str, Any]
RolloutRow = tuple[list[int], list[int], list[float], list[int]]
"""Prompt ids, completion ids, log-probabilities, and the mask of sampled tokens."""


def to_rollout_batch(episodes: Sequence[Episode], pad_token_id: int) -> Batch:
    """Episodes in the form that TRL's `rollout_func` returns."""
    rows = [to_rollout_row(episode, pad_token_id) for episode in episodes]
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def to_rollout_row(episode: Episode, pad_token_id: int) -> RolloutRow:
    """An episode as a row of the batch; its completion starts with the first sampled token.

    Without sampled tokens it becomes a single masked token.
    """
    tokens = episode.tokens
    if tokens is None or 1 not in tokens.mask:
        return [pad_token_id], [pad_token_id], [0.0], [0]
    first = tokens.mask.index(1)
    return (
        list(tokens.ids[:first]),
        list(tokens.ids[first:]),
        [logprob or 0.0 for logprob in tokens.logprobs[first:]],
        list(tokens.mask[first:]),
    )


def choose_batch_rows(has_signal: Sequence[bool], size: int) -> list[int]:
    """The rows of a batch with a learning signal, filled up to `size` with others.

    The gradient of those is 0.
    """
    trained = [row for row, flag in enumerate(has_signal) if flag]
    others = [row for row, flag in enumerate(has_signal) if not flag]
    return sorted([*trained, *others[: size - len(trained)]])


def select_batch_rows(batch: Batch, rows: Sequence[int]) -> Batch:
    """A batch of only these rows, without padding that they do not need."""
    import torch
    from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

    # Pixels are laid out by image, not by row.
    batch = split_pixel_values_by_grid(batch)
    selected = {}
    count = len(batch["prompt_ids"])
    for name, value in batch.items():
        if isinstance(value, torch.Tensor) and value.ndim and len(value) == count:
            value = value[torch.tensor(rows, device=value.device)]
        elif isinstance(value, list) and len(value) == count:
            value = [value[row] for row in rows]
        selected[name] = value
    prompt_length, completion_length = (
        max(1, int(selected[name].sum(1).max())) for name in ("prompt_mask", "completion_mask")
    )
    for name in _LEFT_PADDED:
        selected[name] = selected[name][:, -prompt_length:]
    for name in _RIGHT_PADDED:
        if name in selected and selected[name].ndim == 2 and selected[name].shape[1] > 1:
            selected[name] = selected[name][:, :completion_length]
    return dict(unsplit_pixel_values_by_grid(selected))


def sampled_token_mask(batch: Mapping[str, Any]) -> Any:
    """1 for the completion tokens that bear the loss: those that the model sampled."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def count_loss_tokens(batch: Batch, rows: Any = None) -> Any:
    """How many tokens of a batch bear the loss; of all rows, or of those selected by a mask."""
    mask = sampled_token_mask(batch)
    return mask.sum() if rows is None else mask[rows.to(mask.device)].sum()


def logprob_mismatch(batch: Mapping[str, Any], logprobs: Any) -> float | None:
    """Mean difference between the trainer's log-probabilities and those of the decoder.

    Over the tokens with loss; None where the decoder's are unknown.
    """
    sampled = batch.get("sampling_per_token_logps")
    if sampled is None:
        return None
    mask = sampled_token_mask(batch)
    difference = ((logprobs - sampled).abs() * mask).sum()
    return float(difference / mask.sum().clamp(min=1))
