"""The output folder of a training run: which files belong to it, locking and cleaning.

Only files that a run of Ludus writes are ever removed.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from ludus.data.files import LOCK_FILE, lock_dir
from ludus.data.training_log import EPISODES_FILE, LOG_FILE, RECORD_FILE, read_log
from ludus.errors import LudusError, RunError
from ludus.policy.model_ref import ModelKind, ModelRef, model_chain
from ludus.train.distributed import Distributed
from ludus.train.output.checkpoints import (
    CHECKPOINTS_DIR,
    best_model_folder,
    latest_checkpoint,
)
from ludus.train.output.record import read_record

CARD_FILE = "README.md"
PLOT_FILES = {"sft": "loss.png", "dpo": "loss.png", "grpo": "reward.png"}
TOKENS_DIR = "tokens"
ADAPTER_DIR = "adapter"
TENSORBOARD_DIR = "runs"
"""Where the Hub looks for TensorBoard logs."""
_OWNED_PATTERNS = (
    *(CARD_FILE, *PLOT_FILES.values(), EPISODES_FILE, LOG_FILE, RECORD_FILE),
    *(TOKENS_DIR, ADAPTER_DIR, CHECKPOINTS_DIR, TENSORBOARD_DIR, ".*.draft"),
    *("config.json", "generation_config.json", "model*.safetensors*", "adapter_*"),
    *("preprocessor_config.json", "processor_config.json"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("chat_template*", "additional_chat_templates", "response_template*"),
)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")
"""Libraries that write with Rust or C++ raise their own error classes."""


def check_output_dir(out: Path) -> None:
    """Raise if the folder holds files that are not from a training run."""
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"{out} is a file, not a folder. Use another `out`.")
    names = sorted(path.name for path in out.iterdir())
    # A run that was killed before its record was written leaves only these.
    leftovers = (TOKENS_DIR, LOCK_FILE, CHECKPOINTS_DIR, f".{RECORD_FILE}.*.draft")
    only_leftovers = all(any(fnmatch(name, each) for each in leftovers) for name in names)
    if RECORD_FILE in names or (only_leftovers and latest_checkpoint(out) is None):
        return
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    raise RunError(
        f"{out} is not empty ({names[0]}{more}) and holds no training run of Ludus: there is no "
        f"{RECORD_FILE} in it. Use another `out`."
    )


def check_model_outside(out: Path, model_ref: ModelRef) -> None:
    """Raise if the folder would overwrite the model, or the base model of an adapter."""
    for ref in (model_ref, *islice(model_chain(model_ref.name), 1, None)):
        path = Path(ref.path).resolve()
        if ref.kind is not ModelKind.HUB and path.is_relative_to(out.resolve()):
            raise RunError(
                f"The model {model_ref.name} lies in {out} and would be overwritten ({path}). Use "
                "another `out`."
            )


def has_progress(out: Path) -> bool:
    """Whether the folder has progress to lose: a step since the record was written."""
    record = read_record(out)
    if record is None:
        return False
    return record.metrics is not None or latest_checkpoint(out) is not None or any(read_log(out))


@contextmanager
def lock_folder(out: Path, distributed: Distributed) -> Iterator[None]:
    """Keep other runs out of the folder. The main process holds the lock for all ranks."""
    with ExitStack() as stack:
        with distributed.raise_on_all_ranks():
            if distributed.is_main:
                stack.enter_context(lock_dir(out))
        yield


def remove_run(out: Path) -> None:
    """Remove an earlier run from the folder, except the tokens that the new run has written.

    The record is removed last: a folder without one is not taken for a training folder.
    """
    paths = out.iterdir() if out.is_dir() else ()
    for path in sorted(paths, key=lambda path: path.name == RECORD_FILE):
        owned = any(fnmatch(path.name, pattern) for pattern in _OWNED_PATTERNS)
        if owned and path.name != TOKENS_DIR:
            _remove_path(path)


def remove_temporary_files(out: Path, *, keep_last_checkpoint: bool = False) -> None:
    """Remove from the folder what a finished run does not need, even if it is extended."""
    _remove_path(out / TOKENS_DIR)
    last = latest_checkpoint(out) if keep_last_checkpoint else None
    if last is None:
        _remove_path(out / CHECKPOINTS_DIR)
        return
    for path in last.parent.iterdir():
        if path not in (last, best_model_folder(out)):
            _remove_path(path)


@contextmanager
def discard_if_unstarted(out: Path, distributed: Distributed) -> Iterator[None]:
    """Leave no trace of a run that fails before its first step; an earlier run stays.

    Any library's error about a full disk becomes one line.
    """
    try:
        yield
    except Exception as error:
        is_full = not isinstance(error, LudusError) and is_full_disk(error)
        if not (is_full or isinstance(error, LudusError)):
            raise
        if distributed.is_main:
            _remove_path(out / TOKENS_DIR)
            if latest_checkpoint(out) is None:
                _remove_path(out / CHECKPOINTS_DIR)
            if not has_progress(out):
                for name in (TENSORBOARD_DIR, EPISODES_FILE, LOG_FILE, RECORD_FILE):
                    _remove_path(out / name)
        if not is_full:
            raise
        raise RunError(
            f"The disk of {out} is full. Free disk space, and run the same command again: it "
            "resumes from the last complete checkpoint, or starts anew if there is none."
        ) from error


def is_full_disk(error: Exception) -> bool:
    """Whether an error says that the disk has no space left."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(text in str(error) for text in _FULL_TEXTS)


def _remove_path(path: Path) -> None:
    """Remove a file or a folder of a training run, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
