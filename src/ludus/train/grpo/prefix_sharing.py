"""Prefix sharing in TRL's GRPO trainer: a group's prompt is computed once instead of per member.

TRL computes every row separately. Where prefix trees need less work, the model is given trees, and
the per-token log-probabilities are the same. This is checked on the first batch of a run: a model
for which it does not hold is trained row by row, as in TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from ludus.train.acceleration import supports_cuda_graphs
from ludus.train.data.rows import IGNORE_INDEX
from ludus.train.distributed import Distributed
from ludus.train.grpo.graph_cache import GraphCache
from ludus.train.grpo.prefix_tree import PrefixTrees, build_trees

LOGPROB_TOLERANCE = 1e-3
"""Largest difference of log-probabilities in float32 that counts as rounding."""

Batch = dict[str, Any]


class PrefixSharingMixin:
    """Mixed into TRL's GRPOTrainer."""

    distributed: Distributed
    say: Callable[[str], None]
    shares_prefixes: bool | None = None
    """Whether the model is given trees; None until the first batch has been checked."""
    _graph_cache: GraphCache | None = None
    _graphs_allowed = True
    _batches: Any = None
    """The batches of the current step, ordered by prompt."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        trainer, batch = cast(Any, self), cast(Any, super())._prepare_inputs(inputs)
        if not trainer.model.training:
            return batch
        # TRL shuffles the rows of a step over its batches, which would separate the groups.
        if trainer._buffered_inputs is not self._batches:
            self._batches = trainer._buffered_inputs = group_by_prompt(trainer._buffered_inputs)
        return self._batches[trainer._step % trainer.args.steps_per_generation]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int,
        batch_size: int | None = None, compute_entropy: bool = False, **kwargs: Any,
    ) -> Any:  # fmt: skip
        trainer, size = cast(Any, self), batch_size or len(input_ids)
        score_rows = cast(Any, super())._get_per_token_logps_and_entropies
        unwrapped = trainer.accelerator.unwrap_model(model)
        # Images and the like are not laid out by rows.
        other_inputs = any(value is not None and value is not False for value in kwargs.values())
        if not other_inputs and self.shares_prefixes is None:
            # The model must support tree masks, and each process must have all of its weights.
            sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
            if sharded or not supports_prefix_trees(unwrapped.config):
                self.shares_prefixes = False
        if other_inputs or self.shares_prefixes is False:
            return score_rows(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy,
                **kwargs,
            )  # fmt: skip
        scores = []
        for rows in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            trees = self._build_trees(unwrapped, *rows, logits_to_keep)
            if trees is None:
                scores.append(score_rows(model, *rows, logits_to_keep, None, compute_entropy)[:2])
            else:
                with trainer.accelerator.autocast():
                    scores.append(score_trees(model, trees, compute_entropy))
        logps, entropies = zip(*scores, strict=True)
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None

    def _build_trees(self, model: Any, ids: Any, mask: Any, keep: int) -> PrefixTrees | None:
        trainer = cast(Any, self)
        trees = build_trees(ids, mask, keep, width=model.config.hidden_size)
        # A batch without completion tokens cannot be checked.
        if trees is not None and self.shares_prefixes is None and (trees.token_index >= 0).any():
            self.shares_prefixes = trees_match_rows(model, trees, ids, mask)
            if self.shares_prefixes:
                # `model` may be the reference model, which is scored first and needs no graphs.
                self._graph_cache = self._build_graph_cache(
                    trainer.accelerator.unwrap_model(trainer.model)
                )
                self._enable_graphs(self._graphs_allowed)
        if not self.shares_prefixes:
            trees = None
        if torch.is_grad_enabled():
            if trees is not None and self._graph_cache is not None and self._graphs_allowed:
                trees = self._graph_cache.pad_to_graph_shape(trees)
            share = 1.0 if trees is None else trees.input_ids.numel() / ids.numel()
            trainer._metrics["train"]["computed_share"].append(share)
        return trees

    def _build_graph_cache(self, model: Any) -> GraphCache | None:
        args = cast(Any, self).args
        if args.device.type != "cuda" or not (args.bf16 or args.fp16):
            return None
        if not supports_cuda_graphs(self, self.distributed):
            return None
        dtype = torch.bfloat16 if args.bf16 else torch.float16
        return GraphCache(model.base_model, dtype, self.say)

    def release_graphs(self) -> None:
        """Free the memory of CUDA graphs, and train without them from now on."""
        if self._graph_cache is not None:
            self._graph_cache.release()

    @contextmanager
    def graph_replay(self, allowed: bool) -> Iterator[None]:
        """Whether CUDA graphs may be used: they overwrite gradients, and cannot add to them."""
        before = self._graphs_allowed
        self._enable_graphs(allowed)
        try:
            yield
        finally:
            self._enable_graphs(before)

    def _enable_graphs(self, allowed: bool) -> None:
        """Also of a cache that does not exist yet: the first step builds it."""
        self._graphs_allowed = allowed
        if self._graph_cache is not None:
            self._graph_cache.enabled = allowed


def supports_prefix_trees(config: Any) -> bool:
    """Whether a text model has full attention in all layers and relative positions.

    A tree mask replaces the mask of sliding-window or chunked attention, which would only be
    noticed in rows longer than the window. Models with absolute positions number padded rows
    differently.
    """
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        full_attention = set(layer_types) == {"full_attention"}
    else:
        windows = ("sliding_window", "attention_chunk_size")
        full_attention = not any(getattr(config, name, None) for name in windows)
    text_only = config.get_text_config() is config
    rotary = getattr(config, "rope_parameters", None) is not None
    return full_attention and text_only and rotary and config._attn_implementation == "sdpa"


def score_trees(model: Any, trees: PrefixTrees, entropy: bool = True) -> tuple[Any, Any]:
    """Log-probabilities and entropies by row and completion token."""
    output = model(
        input_ids=trees.input_ids, attention_mask=trees.attention_mask(),
        position_ids=trees.position_ids, shift_labels=trees.labels, fused_lm_head=True,
    )  # fmt: skip
    entropies = trees.gather_rows(output.entropy) if entropy else None
    return trees.gather_rows(output.log_probs), entropies


def group_by_prompt(batches: Sequence[Batch]) -> Sequence[Batch]:
    """Reorder rows across batches so that rows with the same prompt are adjacent."""
    first = batches[0]
    if "pixel_values" in first:
        return batches
    prompts = [tuple(row) for batch in batches for row in batch["prompt_ids"].tolist()]
    first_row = {prompt: row for row, prompt in reversed(list(enumerate(prompts)))}
    order = torch.tensor(sorted(range(len(prompts)), key=lambda row: first_row[prompts[row]]))
    size = len(first["prompt_ids"])
    grouped: list[Batch] = [{} for _ in batches]
    for name, value in first.items():
        parts = [batch[name] for batch in batches]
        if isinstance(value, torch.Tensor) and value.ndim:
            parts = torch.cat(parts)[order.to(value.device)].split(size)
        elif isinstance(value, list):
            values = [each for part in parts for each in part]
            parts = [[values[row] for row in rows] for rows in order.split(size)]
        for batch, part in zip(grouped, parts, strict=True):
            batch[name] = part
    return grouped


def trees_match_rows(model: Any, trees: PrefixTrees, ids: Any, mask: Any) -> bool:
    """Whether the model computes the same log-probabilities from trees as from their rows."""
    keep = trees.token_index.shape[1]
    try:
        with _exact_forward(model) as forward:
            logps, _ = score_trees(forward, trees, entropy=False)
    except (TypeError, ValueError, RuntimeError):
        return False
    difference = (logps - exact_logprobs(model, ids, mask)[:, -keep:])[trees.token_index >= 0]
    return bool(difference.abs().max() < LOGPROB_TOLERANCE)


def exact_logprobs(model: Any, ids: Any, mask: Any) -> Any:
    """Log-probabilities of all tokens of padded rows, in float32 and without dropout."""
    labels = ids.masked_fill(mask == 0, IGNORE_INDEX)
    with _exact_forward(model) as forward:
        scores = forward(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    return scores.log_probs


@contextmanager
def _exact_forward(model: Any) -> Iterator[Any]:
    """The model's forward method in float32, without dropout."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(model.device.type, enabled=False):
            yield getattr(model, "_original_forward", model.forward)
    finally:
        model.train(training)
