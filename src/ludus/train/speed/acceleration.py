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
from ludus.train.speed.cuda_graphs import capture_graph, supports_cuda_graphs
from ludus.train.speed.packing import PackingCollator
from ludus.train.speed.varlen_attention import kernel_works, supports_varlen, use_varlen_attention

MAX_WASTED_FRACTION = 0.2
"""Above that share of padding, rows differ too much in length for batches of one shape."""
_GRAPH_INPUTS = ("input_ids", "position_ids", "cu_seq_lens_q")
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
    lengths = _row_lengths(rows)
    collator = PackingCollator.for_lengths(
        lengths if test_rows is None else [*lengths, *_row_lengths(test_rows)],
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
        _replace_forward(base_model, first_batch, collator.longest_row, args)
    except Exception as error:
        base_model.forward = forward
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        say(f"Training without CUDA graphs, which is slower: {reason}")
        return False
    trainer.train_dataset, trainer.eval_dataset = rows, test_rows
    trainer.data_collator = collator
    return True


def _replace_forward(base_model: Any, example: dict[str, Any], longest_row: int, args: Any) -> None:
    """Replace the forward pass of the model below its head by a CUDA graph."""
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPast

    forward, dtype = base_model.forward, torch.bfloat16 if args.bf16 else torch.float16

    def compute(*inputs: Any) -> Any:
        named = dict(zip(_GRAPH_INPUTS, inputs, strict=True))
        return forward(**named, max_length_q=longest_row, use_cache=False).last_hidden_state

    inputs = [example[name].to(args.device) for name in _GRAPH_INPUTS]
    graphed = capture_graph(base_model, compute, inputs, dtype)

    def run(**inputs: Any) -> Any:
        hidden = graphed(*(inputs[name] for name in _GRAPH_INPUTS))
        return BaseModelOutputWithPast(last_hidden_state=hidden)

    base_model.forward = run


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


def _row_lengths(rows: Any) -> Any:
    import pyarrow.compute as pc

    return pc.list_value_length(rows.data.column("input_ids")).to_numpy()
