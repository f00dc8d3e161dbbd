"""Disk space of a training run: how much it needs, and one line where the disk is full anyway."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ludus.errors import LudusError, RunError
from ludus.train.context import TrainContext
from ludus.train.output.training_folder import TOKENS_DIR
from ludus.train.trainable_model import published_dtype
from ludus.train.trl_config import MAX_CHECKPOINTS

_TOKEN_BYTES_PER_DATA_BYTE = 4
"""A token of four characters has an id and a label of four bytes each, in two files."""
_MOMENTS = {"sgd": 0, "adafactor": 0, "lion": 1, "adagrad": 1, "rmsprop": 1}
"""Numbers that an optimizer keeps for each weight, by a part of its name; two for all others."""
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")
"""Libraries that write with Rust or C++ raise errors of their own."""


def check_token_space(files: Sequence[Path], folder: Path) -> None:
    """Raise if the tokens of these data files will not fit into the folder."""
    needed = _TOKEN_BYTES_PER_DATA_BYTE * sum(file.stat().st_size for file in files)
    if needed > (free := shutil.disk_usage(folder).free):
        raise RunError(
            f"The tokens of the data need about {_format(needed)} in {folder}, and {_format(free)} "
            "are free. Free disk space, or use another `out`."
        )


def choose_kept_checkpoints(context: TrainContext, trainer: Any, *, keeps_best: bool) -> int:
    """How many checkpoints can be kept; raises if the disk does not hold what training writes.

    A checkpoint is written before an older one is removed.
    """
    out, lora = context.out, context.config.lora
    weights = [weight.numel() for weight in trainer.model.parameters()]
    trained = sum(each.numel() for each in trainer.model.parameters() if each.requires_grad)
    saved = trained if lora else sum(weights)
    optimizer = str(getattr(trainer.args.optim, "value", trainer.args.optim))
    moments = next((count for name, count in _MOMENTS.items() if name in optimizer), 2)
    checkpoint = 4 * saved + (1 if "8bit" in optimizer else 4) * moments * trained
    model = 4 * trained if lora else 0
    if lora is None or lora.merge_adapter:
        model += _DTYPE_BYTES[published_dtype(context.model_ref)] * sum(weights)
    best = 2 * 4 * trained if keeps_best else 0
    # What an earlier call wrote here is replaced.
    tokens = out / TOKENS_DIR
    before = sum(
        file.stat().st_size
        for file in out.rglob("*")
        if file.is_file() and not file.is_relative_to(tokens)
    )
    free = shutil.disk_usage(out).free + before
    for kept in range(MAX_CHECKPOINTS, 0, -1):
        needed = (kept + 1) * checkpoint + best + model
        if needed <= free:
            return kept
    smaller = "" if lora else ", or train with `lora`"
    raise RunError(
        f"Training needs {_format(needed)} of disk space in {out} (two checkpoints of "
        f"{_format(checkpoint)}, and {_format(best + model)} for the model), and {_format(free)} "
        f"are free. Free disk space, use another `out`{smaller}."
    )


@contextmanager
def report_full_disk(out: Path) -> Iterator[None]:
    """Turn any library's error about a full disk into one line."""
    try:
        yield
    except LudusError:
        raise
    except Exception as error:
        if not is_full_disk(error):
            raise
        raise RunError(
            f"The disk of {out} is full. Free disk space, and run the same command again: it "
            "resumes from the last complete checkpoint, or starts anew if there is none."
        ) from error


def is_full_disk(error: Exception) -> bool:
    """Whether an error says that there is no space left."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(text in str(error) for text in _FULL_TEXTS)


def _format(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"
