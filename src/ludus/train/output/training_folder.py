"""The folder that a training run writes into: whose it is, and what of it is the run's.

Nothing of anybody else's is ever touched. What the files hold is not its business.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from ludus.data.training_log import EPISODES_FILE, LOG_FILE, RECORD_FILE
from ludus.errors import RunError
from ludus.policy.model_ref import ModelKind, ModelRef, base_model_name, find_local_model
from ludus.train.output.checkpoints import CHECKPOINTS_DIR as CHECKPOINTS
from ludus.train.output.checkpoints import latest_checkpoint
from ludus.train.output.model_card import CARD_FILE, LOSS_PLOT_FILE, PLOT_FILES
from ludus.train.output.record import has_progress

TOKENS_DIR = "tokens"
ADAPTER_DIR = "adapter"
TENSORBOARD_DIR = "runs"
"""Where TensorBoard's curves go, and are looked for on the Hub."""
LOCK_FILE = ".training.lock"
_OWNED_PATTERNS = (
    *(
        CARD_FILE,
        LOSS_PLOT_FILE,
        *PLOT_FILES.values(),
        EPISODES_FILE,
        LOG_FILE,
        RECORD_FILE,
        TOKENS_DIR,
        ADAPTER_DIR,
        CHECKPOINTS,
        *(TENSORBOARD_DIR, "preprocessor_config.json", "processor_config.json"),
    ),
    *("config.json", "generation_config.json", "model*.safetensors*", "adapter_*"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("chat_template*", "additional_chat_templates", "response_template*", ".*.draft"),
)


def check_output_dir(out: Path) -> None:
    """Refuse a folder with something in it that is no training of ours."""
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"{out} is a file, and a model needs a folder. Use another --output-dir.")
    names = sorted(path.name for path in out.iterdir())
    if RECORD_FILE in names or (latest_checkpoint(out) is None and all(map(_is_leftover, names))):
        return
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    raise RunError(
        f"{out} is not empty ({names[0]}{more}) and holds no training of Ludus: there is no "
        f"{RECORD_FILE} in it. Use another --output-dir."
    )


@contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Keep other runs out of the folder.

    The lock is the system's: it goes when its holder does, however that ended. A folder in which
    nothing came to be goes with it.
    """
    from filelock import FileLock, Timeout

    file = out / LOCK_FILE
    lock = FileLock(file, timeout=0)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise RunError(
            f"Another process is training in {out}. Wait until it has ended, or use another "
            "--output-dir."
        ) from error
    except OSError as error:
        raise RunError(f"No model can be written to {out}: {error.strerror or error}.") from error
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            out.rmdir()


def check_model_outside(out: Path, source: ModelRef) -> None:
    """Refuse to write over the very model that is trained, or over one that it is made of."""
    inside = next(
        (path for path in _model_paths(source) if path.is_relative_to(out.resolve())), None
    )
    if inside is not None:
        raise RunError(
            f"The model {source.name} lies in {out}, and would be written over ({inside}). Use "
            "another --output-dir."
        )


def _model_paths(source: ModelRef) -> Iterator[Path]:
    """Where a model is on this disk; of an adapter, where its base is too."""
    found, seen = None if source.kind is ModelKind.HUB else source, set[Path]()
    while found is not None and (path := Path(found.path).resolve()) not in seen:
        seen.add(path)
        yield path
        found = (
            find_local_model(base_model_name(found)) if found.kind is ModelKind.ADAPTER else None
        )


def remove_run(out: Path) -> None:
    """Remove an earlier run, but for the tokens, which are the next one's already.

    Its record goes last: without it the rest would be a stranger's.
    """
    for path in sorted(_owned_paths(out), key=lambda path: path.name == RECORD_FILE):
        if path.name != TOKENS_DIR:
            _remove(path)


def remove_temporary_files(out: Path, *, keep_last_checkpoint: bool = False) -> None:
    """Remove what only a run under way needs; the last checkpoint may be kept, to extend it."""
    _remove(out / TOKENS_DIR)
    last = latest_checkpoint(out) if keep_last_checkpoint else None
    if last is None:
        _remove(out / CHECKPOINTS)
        return
    for path in last.parent.iterdir():
        if path != last:
            _remove(path)


def discard_unstarted_run(out: Path) -> None:
    """Leave no trace of a run that was refused before it began; an earlier one stays."""
    _remove(out / TOKENS_DIR)
    if latest_checkpoint(out) is None:
        _remove(out / CHECKPOINTS)
    if not has_progress(out):
        for name in (TENSORBOARD_DIR, EPISODES_FILE, LOG_FILE, RECORD_FILE):
            _remove(out / name)


def _is_leftover(name: str) -> bool:
    """What a run leaves that was killed before its record was written: nothing of worth."""
    return name in (TOKENS_DIR, LOCK_FILE, CHECKPOINTS) or fnmatch(name, f".{RECORD_FILE}.*.draft")


def _owned_paths(out: Path) -> Iterator[Path]:
    for path in out.iterdir() if out.is_dir() else ():
        if any(fnmatch(path.name, pattern) for pattern in _OWNED_PATTERNS):
            yield path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
