"""A model's forward pass as CUDA graphs: captured once, and played back forward and backward.

Launching thousands of small kernels takes longer than running them, and a graph is launched at
once. It reads and writes the same places each time: those of its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ludus.policy.triton_engine.cuda_graphs import gc_disabled
from ludus.train.distributed import Distributed

GraphedForward = Callable[..., Any]


def supports_cuda_graphs(trainer: Any, distributed: Distributed) -> bool:
    """Whether each step goes the same way through all layers, and its gradients are nobody else's.

    A graph writes them to the same place each time, where neither other batches nor other processes
    may add to them; and what the trainer changes in the model later on is not in it.
    """
    config, model = trainer.args, trainer.model
    changed = (
        config.gradient_checkpointing,
        config.use_liger_kernel,
        config.neftune_noise_alpha,
        config.debug,
        trainer.aux_loss_enabled,
        # An adapter is around it.
        hasattr(model, "get_base_model"),
    )
    same = config.gradient_accumulation_steps == distributed.world_size == 1 and not any(changed)
    return same and model.base_model is not model


def capture_graph(
    core: Any,
    compute: GraphedForward,
    example_inputs: Sequence[Any],
    dtype: Any,
    *,
    pool: Any = None,
) -> GraphedForward:
    """What a core computes of tensors like those shown, to be played back while it is trained.

    Args:
        core: What is computed with; its weights are learned from what is played back.
        compute: Its forward pass, from tensors to a tensor.
        shown: Tensors, of the shapes that it will be given.
        dtype: What the sums are made in.
        pool: Memory that graphs share of which only one is played at a time.
    """
    import torch

    def computed(*given: Any) -> Any:
        # Weights that were cast for one step are not those of the next.
        with torch.autocast("cuda", dtype, cache_enabled=False):
            return compute(*given)

    before = core.forward
    core.train()
    core.forward = computed
    try:
        # Around a capture there may be no casts that are remembered.
        with gc_disabled(), torch.autocast("cuda", enabled=False):
            torch.cuda.make_graphed_callables(
                core, tuple(example_inputs), allow_unused_input=True, pool=pool
            )
        made: GraphedForward = core.forward
        return made
    finally:
        core.forward = before
        # It was tried in a stream of its own, and what that has had no other is lent.
        torch.cuda.empty_cache()
