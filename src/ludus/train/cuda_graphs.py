"""CUDA graphs of a model's forward and backward pass.

Launching thousands of small kernels takes longer than running them; a graph is launched at once. It
reads and writes the same memory each time, so there is one for each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ludus.policy.triton_engine.cuda_graphs import end_failed_capture, gc_disabled
from ludus.train.distributed import Distributed

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel, Trainer, TrainingArguments
    from transformers.modeling_outputs import BaseModelOutputWithPast

    from ludus.train.data.batches import Batch

_GRAPH_INPUTS = ("input_ids", "position_ids", "cu_seq_lens_q")
"""Tensors of a packed batch that a graph reads."""
GraphedForward = Callable[..., "Tensor"]


def supports_cuda_graphs(trainer: Trainer, distributed: Distributed) -> bool:
    """Whether every step runs the same kernels, and the gradients of a step come from one batch.

    A graph writes gradients to the same memory each time, so neither accumulation nor other ranks
    may add to them; and it does not contain what the trainer changes in the model later on.
    """
    args, model = trainer.args, trainer.model
    changes_model = (
        args.gradient_checkpointing,
        args.use_liger_kernel,
        args.neftune_noise_alpha,
        args.debug,
        trainer.aux_loss_enabled,
        # An adapter.
        hasattr(model, "get_base_model"),
    )
    one_batch = args.gradient_accumulation_steps == distributed.world_size == 1
    return one_batch and not any(changes_model) and model.base_model is not model


def capture_graph(
    module: nn.Module,
    compute: GraphedForward,
    example_inputs: Sequence[Tensor],
    dtype: torch.dtype,
    *,
    pool: tuple[int, int] | None = None,
) -> GraphedForward:
    """Capture a forward pass and its backward pass, for inputs of one shape.

    Args:
        module: The module whose weights are trained.
        compute: Its forward pass, from tensors to a tensor.
        example_inputs: Tensors of the shapes that the graph is for.
        dtype: The dtype of autocast.
        pool: Memory shared by graphs of which only one runs at a time.
    """
    import torch

    def forward(*inputs: Tensor) -> Tensor:
        # Without the cache of autocast: a replay must cast the weights of its own step.
        with torch.autocast("cuda", dtype, cache_enabled=False):
            return compute(*inputs)

    before = module.forward
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    module.train()
    module.forward = forward
    try:
        # Capturing fails under an autocast with a cache.
        with gc_disabled(), torch.autocast("cuda", enabled=False):
            torch.cuda.make_graphed_callables(
                module, tuple(example_inputs), allow_unused_input=True, pool=pool
            )
        graphed: GraphedForward = module.forward
        return graphed
    except BaseException:
        end_failed_capture(pool)
        raise
    finally:
        module.forward = before
        # The warm-up ran in a stream of its own, whose memory no other stream can reuse.
        torch.cuda.empty_cache()


def describe_capture_error(error: BaseException) -> str:
    """Why a graph could not be captured, in one line.

    An error during a capture makes its end fail, too, and that is what is raised last.
    """
    import torch

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, torch.OutOfMemoryError):
        cause = cause.__context__
    if cause is not None:
        return "there is not enough free GPU memory for them"
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def replace_forward_by_graph(
    base_model: PreTrainedModel, example: Batch, longest_row: int, args: TrainingArguments
) -> None:
    """Replace the forward pass of the model below its head by a CUDA graph."""
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPast

    forward, dtype = base_model.forward, torch.bfloat16 if args.bf16 else torch.float16

    def compute(*inputs: Tensor) -> Tensor:
        named = dict(zip(_GRAPH_INPUTS, inputs, strict=True))
        outputs: BaseModelOutputWithPast = forward(
            **named, max_length_q=longest_row, use_cache=False
        )
        return outputs.last_hidden_state

    inputs = [example[name].to(args.device) for name in _GRAPH_INPUTS]
    graphed = capture_graph(base_model, compute, inputs, dtype)

    def run(**inputs: Any) -> BaseModelOutputWithPast:
        hidden = graphed(*(inputs[name] for name in _GRAPH_INPUTS))
        return BaseModelOutputWithPast(last_hidden_state=hidden)

    base_model.forward = run
