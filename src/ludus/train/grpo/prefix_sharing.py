"""How the trainer reads a step's rows: a prompt once for all members of its group.

TRL reads every row by itself. Where less is to be read in trees, its model is given trees; what it
then says of every token is what TRL would have been told. That this is so is tried on the first
batch of a run, and a model of which it is not true goes on as TRL has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from ludus.train.data.loss_mask import IGNORE_INDEX
from ludus.train.grpo.graph_cache import GraphCache
from ludus.train.grpo.grpo_callbacks import GRPOCallbacks
from ludus.train.grpo.prefix_tree import PrefixTrees, build_trees
from ludus.train.speed.cuda_graphs import supports_cuda_graphs

LOGPROB_TOLERANCE = 1e-3
"""So far apart log-probabilities may be, in single precision, and be the same but for rounding."""

_CHUNK = "attention_chunk_size"

Batch = dict[str, Any]


class PrefixSharingMixin:
    """Laid over TRL's trainer."""

    pace: GRPOCallbacks
    reads_trees: bool | None = None
    """Whether the model is given trees; None until it was tried."""
    _playback: GraphCache | None = None
    _batches: Any = None
    """Those of the newest step, with the members of a group side by side."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        us, made = cast(Any, self), cast(Any, super())._prepare_inputs(inputs)
        if not us.model.training:
            return made
        # TRL has shuffled the rows; and strangers share nothing.
        if us._buffered_inputs is not self._batches:
            self._batches = us._buffered_inputs = group_by_prompt(us._buffered_inputs)
        return self._batches[us._step % us.args.steps_per_generation]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int,
        batch_size: int | None = None, compute_entropy: bool = False, **more: Any,
    ) -> Any:  # fmt: skip
        us, size = cast(Any, self), batch_size or len(input_ids)
        by_row = cast(Any, super())._get_per_token_logps_and_entropies
        core = us.accelerator.unwrap_model(model)
        if not self._can_share_prefixes(core) or any(_is_given(value) for value in more.values()):
            return by_row(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy,
                **more,
            )  # fmt: skip
        said = []
        for rows in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            trees = self._build_trees(core, *rows, logits_to_keep)
            if trees is None:
                said.append(by_row(model, *rows, logits_to_keep, None, compute_entropy)[:2])
            else:
                with us.accelerator.autocast():
                    said.append(score_trees(model, trees, compute_entropy))
        logps, entropies = zip(*said, strict=True)
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None

    def _can_share_prefixes(self, core: Any) -> bool:
        """Whether what a token sees can be said, and the weights are all here."""
        us = cast(Any, self)
        spread = us.is_deepspeed_enabled or us.is_fsdp_enabled
        if self.reads_trees is None and (spread or not supports_prefix_trees(core.config)):
            self.reads_trees = False
        return self.reads_trees is not False

    def _build_trees(self, core: Any, ids: Any, mask: Any, keep: int) -> PrefixTrees | None:
        us = cast(Any, self)
        trees = build_trees(ids, mask, keep, width=core.config.hidden_size)
        # Of nothing that was said, nothing can be found out.
        if trees is not None and self.reads_trees is None and (trees.token_index >= 0).any():
            self.reads_trees = trees_match_rows(core, trees, ids, mask)
            if self.reads_trees:
                # It may be the reference that was asked first, which learns nothing.
                self._playback = self._played_back(us.accelerator.unwrap_model(us.model))
        if not self.reads_trees:
            trees = None
        if torch.is_grad_enabled():
            if trees is not None and self._playback is not None:
                trees = self._playback.pad_to_graph_shape(trees)
            share = 1.0 if trees is None else trees.input_ids.numel() / ids.numel()
            us._metrics["train"]["read"].append(share)
        return trees

    def _played_back(self, core: Any) -> GraphCache | None:
        config = cast(Any, self).args
        if config.device.type != "cuda" or not (config.bf16 or config.fp16):
            return None
        if not supports_cuda_graphs(self, self.pace.distributed):
            return None
        dtype = torch.bfloat16 if config.bf16 else torch.float16
        return GraphCache(core.base_model, dtype, self.pace.progress.say)

    def stop_playback(self) -> None:
        """Compute the layers as they are from now on."""
        if self._playback is not None:
            self._playback.stop()
        self._playback = None


def supports_prefix_trees(config: Any) -> bool:
    """Whether a model's tokens see all that came before them, and how far away it is.

    A mask that is given to one that looks back only so far takes the place of its own, which shows
    only when rows become longer than that; and one that counts from the row's first column is told
    other positions by padding.
    """
    kinds = getattr(config, "layer_types", None)
    far = (
        set(kinds) == {"full_attention"}
        if kinds
        else not any(getattr(config, name, None) for name in ("sliding_window", _CHUNK))
    )
    reads_only = config.get_text_config() is config
    relative = getattr(config, "rope_parameters", None) is not None
    return far and reads_only and relative and config._attn_implementation == "sdpa"


def _is_given(value: Any) -> bool:
    return value is not None and value is not False


def score_trees(model: Any, trees: PrefixTrees, entropy: bool = True) -> tuple[Any, Any]:
    """The log-probability of every token of the rows' completions, and the entropy before it."""
    said = model(
        input_ids=trees.input_ids, attention_mask=trees.attention_mask(), position_ids=trees.position_ids,
        shift_labels=trees.labels, fused_lm_head=True,
    )  # fmt: skip
    return trees.gather_rows(said.log_probs), trees.gather_rows(said.entropy) if entropy else None


def group_by_prompt(batches: Sequence[Batch]) -> Sequence[Batch]:
    """The same rows in as many batches, those with the same prompt one after the other."""
    first = batches[0]
    if len(batches) == 1 or "pixel_values" in first:
        return batches
    prompts = [tuple(row) for batch in batches for row in batch["prompt_ids"].tolist()]
    seen = {prompt: place for place, prompt in reversed(list(enumerate(prompts)))}
    order = torch.tensor(sorted(range(len(prompts)), key=lambda row: seen[prompts[row]]))
    size = len(first["prompt_ids"])
    made: list[Batch] = [{} for _ in batches]
    for name, value in first.items():
        parts = [batch[name] for batch in batches]
        if isinstance(value, torch.Tensor) and value.ndim:
            parts = torch.cat(parts)[order.to(value.device)].split(size)
        elif isinstance(value, list):
            every = [each for part in parts for each in part]
            parts = [[every[row] for row in rows] for rows in order.split(size)]
        for batch, part in zip(made, parts, strict=True):
            batch[name] = part
    return made


def trees_match_rows(core: Any, trees: PrefixTrees, ids: Any, mask: Any) -> bool:
    """Whether the model says the same of trees as of the rows that they were made of."""
    labels = ids.masked_fill(mask == 0, IGNORE_INDEX)
    keep = trees.token_index.shape[1]
    with _exact_forward(core) as read:
        by_row = read(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
        try:
            logps, _ = score_trees(read, trees, entropy=False)
        except (TypeError, ValueError, RuntimeError):
            return False
    apart = (logps - by_row.log_probs[:, -keep:])[trees.token_index >= 0]
    return bool(apart.abs().max() < LOGPROB_TOLERANCE)


@contextmanager
def _exact_forward(core: Any) -> Iterator[Any]:
    """A model's forward pass in single precision, with nothing left to chance."""
    learns = core.training
    core.eval()
    try:
        with torch.no_grad(), torch.autocast(core.device.type, enabled=False):
            yield getattr(core, "_original_forward", core.forward)
    finally:
        core.train(learns)
