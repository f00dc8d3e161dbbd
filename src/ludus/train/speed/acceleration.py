"""Faster SFT on GPUs: no padding, compiled layers, and CUDA graphs.

Rows are concatenated, so that no padding is computed. Each layer is compiled, which fuses many
kernels into few. Where all batches can have the same shape, the forward and backward passes of all
layers are captured as CUDA graphs, because launching thousands of small kernels takes longer than
running them. The loss, the optimizer and the order of rows are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from ludus.train.config import TrainConfig
from ludus.train.distributed import Distributed
from ludus.train.speed.cuda_graphs import (
    describe_capture_error,
    replace_forward_by_graph,
    supports_cuda_graphs,
)
from ludus.train.speed.packing import PackingCollator, row_lengths
from ludus.train.speed.varlen_attention import kernel_works, supports_varlen, use_varlen_attention

MAX_WASTED_FRACTION = 0.2
"""Above that share of padding, rows differ too much in length for batches of one shape."""
Say = Callable[[str], None]


def accelerate(trainer: Any, config: TrainConfig, distributed: Distributed, say: Say) -> None:
    """Speed up an SFT trainer, as far as its device, its model and the config allow."""
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
    one_shape = compiles and not config.packing and supports_cuda_graphs(trainer, distributed)
    if one_shape and _use_cuda_graph(trainer, say):
        return
    # TRL's collator concatenates rows too, but then each batch has a length of its own.
    trainer.data_collator.padding_free = trainer.padding_free = True
    if compiles:
        _compile_layers(trainer.model, dynamic=True)


@contextmanager
def skip_unlabelled_logits() -> Iterator[None]:
    """Compute logits only at positions with a label, on all devices.

    TRL does so on GPUs. On others it computes all logits, so that shapes are static for XLA, which
    is not used here; most positions have no label, and a CPU trains at half the speed then.
    """
    from trl.trainer import utils

    before = utils._use_triton
    utils._use_triton = lambda device: True
    try:
        yield
    finally:
        utils._use_triton = before


def _supports_varlen_training(trainer: Any) -> bool:
    import torch

    args, model = trainer.args, _unwrap_adapter(trainer.model)
    half = args.bf16 or args.fp16
    if args.device.type != "cuda" or not half or not supports_varlen(model):
        return False
    return kernel_works(model, torch.bfloat16 if args.bf16 else torch.float16)


def _use_cuda_graph(trainer: Any, say: Say) -> bool:
    """Capture the layers as a CUDA graph; False if that is not possible."""
    args, test_rows = trainer.args, trainer.eval_dataset
    # Arrays are concatenated much faster than lists.
    rows = trainer.train_dataset.with_format("numpy")
    test_rows = None if test_rows is None else test_rows.with_format("numpy")
    batch_size = args.per_device_train_batch_size
    lengths = row_lengths(rows)
    collator = PackingCollator.for_lengths(
        lengths if test_rows is None else [*lengths, *row_lengths(test_rows)],
        max(batch_size, args.per_device_eval_batch_size),
        trainer.processing_class.pad_token_id,
    )
    if collator.wasted_fraction(lengths, batch_size) > MAX_WASTED_FRACTION:
        return False
    first_batch = collator([rows[index] for index in range(min(batch_size, len(rows)))])
    base_model = trainer.model.base_model
    forward = base_model.forward
    try:
        _compile_layers(trainer.model, dynamic=False)
        replace_forward_by_graph(base_model, first_batch, collator.longest_row, args)
    except Exception as error:
        base_model.forward = forward
        reason = describe_capture_error(error)
        say(f"Training without CUDA graphs, which is slower: {reason}")
        return False
    trainer.train_dataset, trainer.eval_dataset = rows, test_rows
    trainer.data_collator = collator
    return True


def _compile_layers(model: Any, *, dynamic: bool) -> None:
    """Compile layer by layer: they have the same code, so one compilation serves all."""
    import torch

    model = _unwrap_adapter(model)
    count = model.config.get_text_config().num_hidden_layers
    stacks = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]
    for layer in next((stack for stack in stacks if len(stack) == count), ()):
        layer.compile(dynamic=dynamic)


def _unwrap_adapter(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
