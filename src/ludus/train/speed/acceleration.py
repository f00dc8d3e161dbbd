"""What makes SFT fast on a GPU, where the device is quick and telling it what to do is not.

Rows are laid end to end, so that no padding is computed; each layer is compiled, which makes few
kernels of many; and where every batch has the same shape, the work of all layers is captured once
as a graph and played back, because launching thousands of small kernels takes longer than running
them. The loss, the optimizer and the order of rows are the trainer's own, and stay as they are.
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
"""Rows of very different lengths would fill a strip of one length too badly."""
Say = Callable[[str], None]


def accelerate(trainer: Any, config: TrainConfig, distributed: Distributed, say: Say) -> None:
    """Make a trainer of rows faster, as far as its device, its model and the settings allow."""
    if config.compile is False:
        return
    if not _supports_varlen_training(trainer):
        if config.compile:
            say("--compile does nothing here: it is for GPUs that compute in bf16 or fp16.")
        return
    use_varlen_attention(trainer.model)
    compiled = config.compile or _can_compile(trainer, distributed)
    if (
        compiled
        and not config.packing
        and supports_cuda_graphs(trainer, distributed)
        and _use_cuda_graph(trainer, say)
    ):
        return
    # TRL's own collator lays rows end to end as well; then each batch has its own length.
    trainer.data_collator.padding_free = trainer.padding_free = True
    if compiled:
        _compile_layers(trainer.model, dynamic=True)


@contextmanager
def skip_unlabelled_logits() -> Iterator[None]:
    """On every device, as TRL does it on GPUs; on others it scores all positions.

    It does so for compilers that want one shape, of which none is at work here, and most positions
    of a row bear no loss: without this a CPU trains at half the speed.
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

    config, model = trainer.args, _unwrap_adapter(trainer.model)
    if (
        config.device.type != "cuda"
        or not (config.bf16 or config.fp16)
        or not supports_varlen(model)
    ):
        return False
    return kernel_works(model, torch.bfloat16 if config.bf16 else torch.float16)


def _can_compile(trainer: Any, world: Distributed) -> bool:
    alone = world.world_size == 1 and not trainer.args.gradient_checkpointing
    return alone and find_spec("triton") is not None


def _use_cuda_graph(trainer: Any, say: Say) -> bool:
    """Capture the work of all layers; False where it cannot be done."""
    rows, test = _as_numpy(trainer.train_dataset), _as_numpy(trainer.eval_dataset)
    batch = trainer.args.per_device_train_batch_size
    lengths = _row_lengths(rows)
    strip = PackingCollator.for_lengths(
        lengths if test is None else [*lengths, *_row_lengths(test)],
        max(batch, trainer.args.per_device_eval_batch_size),
        trainer.processing_class.pad_token_id,
    )
    if strip.wasted_fraction(lengths, batch) > MAX_WASTED_FRACTION:
        return False
    first = strip([rows[at] for at in range(min(batch, len(rows)))])
    core = trainer.model.base_model
    forward = core.forward
    try:
        _compile_layers(trainer.model, dynamic=False)
        _replace_forward(core, first, strip, trainer.args)
    except Exception as error:
        core.forward = forward
        why = next(iter(str(error).splitlines()), "") or type(error).__name__
        say(f"Training without a captured graph, which is slower: {why}")
        return False
    trainer.train_dataset, trainer.eval_dataset = rows, test
    trainer.data_collator = strip
    return True


def _replace_forward(core: Any, first: dict[str, Any], strip: PackingCollator, config: Any) -> None:
    """The core's forward pass is played back where it is trained, and computed elsewhere."""
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPast

    names = ("input_ids", "position_ids", "cu_seq_lens_q")
    forward, dtype = core.forward, torch.bfloat16 if config.bf16 else torch.float16

    def compute(*given: Any) -> Any:
        made = forward(
            **dict(zip(names, given, strict=True)), max_length_q=strip.longest_row, use_cache=False
        )
        return made.last_hidden_state

    play = capture_graph(core, compute, [first[name].to(config.device) for name in names], dtype)

    def run(**inputs: Any) -> Any:
        return BaseModelOutputWithPast(last_hidden_state=play(*(inputs[name] for name in names)))

    core.forward = run


def _as_numpy(rows: Any) -> Any:
    """Rows as arrays, which are laid end to end much faster than lists."""
    return rows if rows is None else rows.with_format("numpy")


def _compile_layers(model: Any, *, dynamic: bool) -> None:
    """Layer by layer: they are alike, so one of them is compiled and all use it."""
    for layer in _decoder_layers(_unwrap_adapter(model)):
        layer.compile(dynamic=dynamic)


def _unwrap_adapter(model: Any) -> Any:
    """The model below an adapter."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _decoder_layers(model: Any) -> list[Any]:
    import torch

    count = model.config.get_text_config().num_hidden_layers
    stacks = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]
    return next((list(stack) for stack in stacks if len(stack) == count), [])


def _row_lengths(rows: Any) -> Any:
    import pyarrow.compute as pc

    return pc.list_value_length(rows.data.column("input_ids")).to_numpy()
