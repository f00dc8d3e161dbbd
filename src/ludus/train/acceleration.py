"""Faster SFT on GPUs: no padding, compiled layers, and CUDA graphs.

Rows are concatenated, so that no padding is computed. Each layer is compiled, which fuses many
kernels into few. If all batches can have the same shape, the forward and backward passes of all
layers are captured as CUDA graphs, because launching thousands of small kernels takes longer than
running them; a graph reads and writes the same memory each time. The loss, the optimizer and the
order of rows are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ludus.policy.triton_engine.cuda_graphs import end_failed_capture, gc_disabled
from ludus.train.config import TrainConfig
from ludus.train.data.batches import PackingCollator
from ludus.train.distributed import Distributed

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from torch import Tensor
    from transformers import PreTrainedModel, Trainer, TrainingArguments
    from transformers.modeling_outputs import BaseModelOutputWithPast

    from ludus.train.data.batches import Batch
    from ludus.train.trl_trainers import TRLTrainerMixin

MAX_WASTED_FRACTION = 0.2
"""Above that share of padding, rows differ too much in length for batches of one shape."""
Say = Callable[[str], None]
_GRAPH_INPUTS = ("input_ids", "position_ids", "cu_seq_lens_q")
"""Tensors of a packed batch that a graph reads."""


def accelerate(
    trainer: TRLTrainerMixin, config: TrainConfig, distributed: Distributed, say: Say
) -> None:
    """Speed up an SFT trainer, as far as its device, its model and the config allow."""
    from ludus.train.packed_attention import use_varlen_attention

    if config.compile is False:
        return
    if not _supports_varlen_training(trainer):
        if config.compile:
            say("`compile` has no effect: it is for GPUs that compute in bf16 or fp16.")
        return
    use_varlen_attention(trainer.model)
    compiles = config.compile or (
        distributed.world_size == 1
        and not trainer.args.gradient_checkpointing
        and find_spec("triton") is not None
    )
    one_shape = compiles and supports_cuda_graphs(trainer, distributed)
    if one_shape and _use_cuda_graph(trainer, say):
        return
    # TRL's collator concatenates rows too, but then each batch has a different length.
    trainer.data_collator.padding_free = trainer.padding_free = True
    if compiles:
        compile_layers(trainer.model, dynamic=True)


@contextmanager
def skip_unlabelled_logits() -> Iterator[None]:
    """Compute logits only at positions with a label, on all devices.

    TRL does so on GPUs. On others it computes all logits, to keep shapes static for XLA, which is
    not used here. Most positions have no label, and a CPU would train at half the speed.
    """
    from trl.trainer import utils

    before = utils._use_triton
    utils._use_triton = lambda device: True
    try:
        yield
    finally:
        utils._use_triton = before


def _supports_varlen_training(trainer: TRLTrainerMixin) -> bool:
    import torch

    from ludus.train.packed_attention import supports_varlen, varlen_kernel_works

    args, model = trainer.args, _unwrap_adapter(trainer.model)
    half = args.bf16 or args.fp16
    if args.device.type != "cuda" or not half or not supports_varlen(model):
        return False
    return varlen_kernel_works(model, torch.bfloat16 if args.bf16 else torch.float16)


def _use_cuda_graph(trainer: TRLTrainerMixin, say: Say) -> bool:
    """Capture the layers as a CUDA graph; False if that is not possible."""
    import torch

    args, test_rows = trainer.args, trainer.eval_dataset
    # Arrays are concatenated much faster than lists.
    rows = trainer.train_dataset.with_format("numpy")
    test_rows = None if test_rows is None else test_rows.with_format("numpy")
    batch_size, lengths = args.per_device_train_batch_size, _row_lengths(rows)
    collator = PackingCollator.for_lengths(
        lengths if test_rows is None else [*lengths, *_row_lengths(test_rows)],
        max(batch_size, args.per_device_eval_batch_size),
        trainer.processing_class.pad_token_id,
    )
    if collator.wasted_fraction(lengths, batch_size) > MAX_WASTED_FRACTION:
        return False
    first_batch = collator([rows[index] for index in range(min(batch_size, len(rows)))])
    try:
        compile_layers(trainer.model, dynamic=False)
        base_model = trainer.model.base_model
        replace_forward_by_graph(base_model, first_batch, collator.longest_row, args)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        # An error during a capture makes its end fail, too, and that is what is raised last.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, torch.OutOfMemoryError):
            cause = cause.__context__
        if cause is not None:
            reason = "there is not enough free GPU memory for them"
        say(f"Training without CUDA graphs, which is slower: {reason}")
        return False
    trainer.train_dataset, trainer.eval_dataset = rows, test_rows
    trainer.data_collator = collator
    return True


def _row_lengths(rows: Dataset) -> np.ndarray[Any, Any]:
    import pyarrow.compute as pc

    lengths: np.ndarray[Any, Any] = pc.list_value_length(rows.data.column("input_ids")).to_numpy()
    return lengths


def compile_layers(model: PreTrainedModel, *, dynamic: bool) -> None:
    """Compile layer by layer: layers share code, so one compilation serves all."""
    import torch

    model = _unwrap_adapter(model)
    count = model.config.get_text_config().num_hidden_layers
    stacks = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]
    for layer in next((stack for stack in stacks if len(stack) == count), ()):
        layer.compile(dynamic=dynamic)


def _unwrap_adapter(model: PreTrainedModel) -> PreTrainedModel:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def supports_cuda_graphs(trainer: Trainer, distributed: Distributed) -> bool:
    """Whether CUDA graphs can run SFT: an unmodified model, and one batch per step.

    A graph writes gradients to the same memory each time, so neither accumulation nor other ranks
    may add to them; nor does it see later changes of the model.
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


def replace_forward_by_graph(
    base_model: PreTrainedModel, example: Batch, longest_row: int, args: TrainingArguments
) -> None:
    """Run the layers below the head, forward and backward, as CUDA graphs.

    They are captured for batches of the shapes of the example.
    """
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPast

    forward, dtype = base_model.forward, torch.bfloat16 if args.bf16 else torch.float16

    def compute(*inputs: Tensor) -> Tensor:
        named = dict(zip(_GRAPH_INPUTS, inputs, strict=True))
        # Without the cache of autocast: a replay must cast the weights of its step.
        with torch.autocast("cuda", dtype, cache_enabled=False):
            outputs = forward(**named, max_length_q=longest_row, use_cache=False)
        hidden: Tensor = outputs.last_hidden_state
        return hidden

    inputs = tuple(example[name].to(args.device) for name in _GRAPH_INPUTS)
    pool = torch.cuda.graph_pool_handle()
    base_model.train()
    base_model.forward = compute
    try:
        # Capturing fails under an autocast with a cache.
        with gc_disabled(), torch.autocast("cuda", enabled=False):
            torch.cuda.make_graphed_callables(
                base_model, inputs, allow_unused_input=True, pool=pool
            )
    except BaseException:
        base_model.forward = forward
        end_failed_capture(pool)
        raise
    finally:
        # The warm-up ran in a separate stream, whose memory no other stream can reuse.
        torch.cuda.empty_cache()
    graphed = base_model.forward

    def run(**inputs: Any) -> BaseModelOutputWithPast:
        hidden = graphed(*(inputs[name] for name in _GRAPH_INPUTS))
        return BaseModelOutputWithPast(last_hidden_state=hidden)

    base_model.forward = run
