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

from ludus.train.attention import attend_by_rows, can_attend, works
from ludus.train.captured import captured, is_alike
from ludus.train.settings import Settings
from ludus.train.strip import Strip
from ludus.train.world import World

MOST_WASTE = 0.2
"""Rows of very different lengths would fill a strip of one length too badly."""
Say = Callable[[str], None]


def hasten(trainer: Any, config: Settings, world: World, say: Say) -> None:
    """Make a trainer of rows faster, as far as its device, its model and the settings allow."""
    if config.compile is False:
        return
    if not _is_quick(trainer):
        if config.compile:
            say("--compile does nothing here: it is for GPUs that compute in bf16 or fp16.")
        return
    attend_by_rows(trainer.model)
    compiled = config.compile or _compiles(trainer, world)
    if compiled and not config.packing and is_alike(trainer, world) and _graphed(trainer, say):
        return
    # TRL's own collator lays rows end to end as well; then each batch has its own length.
    trainer.data_collator.padding_free = trainer.padding_free = True
    if compiled:
        _compile(trainer.model, dynamic=True)


@contextmanager
def scoring_where_there_is_loss() -> Iterator[None]:
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


def _is_quick(trainer: Any) -> bool:
    import torch

    config, model = trainer.args, _core(trainer.model)
    if config.device.type != "cuda" or not (config.bf16 or config.fp16) or not can_attend(model):
        return False
    return works(model, torch.bfloat16 if config.bf16 else torch.float16)


def _compiles(trainer: Any, world: World) -> bool:
    alone = world.size == 1 and not trainer.args.gradient_checkpointing
    return alone and find_spec("triton") is not None


def _graphed(trainer: Any, say: Say) -> bool:
    """Capture the work of all layers; False where it cannot be done."""
    rows, test = _numbers(trainer.train_dataset), _numbers(trainer.eval_dataset)
    batch = trainer.args.per_device_train_batch_size
    lengths = _lengths(rows)
    strip = Strip.for_rows(
        lengths if test is None else [*lengths, *_lengths(test)],
        max(batch, trainer.args.per_device_eval_batch_size),
        trainer.processing_class.pad_token_id,
    )
    if strip.waste(lengths, batch) > MOST_WASTE:
        return False
    first = strip([rows[at] for at in range(min(batch, len(rows)))])
    core = trainer.model.base_model
    forward = core.forward
    try:
        _compile(trainer.model, dynamic=False)
        _capture(core, first, strip, trainer.args)
    except Exception as error:
        core.forward = forward
        why = next(iter(str(error).splitlines()), "") or type(error).__name__
        say(f"Training without a captured graph, which is slower: {why}")
        return False
    trainer.train_dataset, trainer.eval_dataset = rows, test
    trainer.data_collator = strip
    return True


def _capture(core: Any, first: dict[str, Any], strip: Strip, config: Any) -> None:
    """The core's forward pass is played back where it is trained, and computed elsewhere."""
    import torch
    from transformers.modeling_outputs import BaseModelOutputWithPast

    names = ("input_ids", "position_ids", "cu_seq_lens_q")
    forward, dtype = core.forward, torch.bfloat16 if config.bf16 else torch.float16

    def compute(*given: Any) -> Any:
        made = forward(
            **dict(zip(names, given, strict=True)), max_length_q=strip.longest, use_cache=False
        )
        return made.last_hidden_state

    play = captured(core, compute, [first[name].to(config.device) for name in names], dtype)

    def run(**inputs: Any) -> Any:
        return BaseModelOutputWithPast(last_hidden_state=play(*(inputs[name] for name in names)))

    core.forward = run


def _numbers(rows: Any) -> Any:
    """Rows as arrays, which are laid end to end much faster than lists."""
    return rows if rows is None else rows.with_format("numpy")


def _compile(model: Any, *, dynamic: bool) -> None:
    """Layer by layer: they are alike, so one of them is compiled and all use it."""
    for layer in _layers(_core(model)):
        layer.compile(dynamic=dynamic)


def _core(model: Any) -> Any:
    """The model below an adapter."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _layers(model: Any) -> list[Any]:
    import torch

    count = model.config.get_text_config().num_hidden_layers
    stacks = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]
    return next((list(stack) for stack in stacks if len(stack) == count), [])


def _lengths(rows: Any) -> Any:
    import pyarrow.compute as pc

    return pc.list_value_length(rows.data.column("input_ids")).to_numpy()
