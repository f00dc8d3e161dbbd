"""The folder that a training run writes into: whose it is, and what of it is the run's.

Nothing of anybody else's is ever touched. What the files hold is not its business.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from ludus.errors import RunError
from ludus.train.card import CARD, PICTURE
from ludus.train.checkpoints import FOLDER as CHECKPOINTS
from ludus.train.record import LOG, RECORD

TOKENS = "tokens"
ADAPTER = "adapter"
LOCK = ".training.lock"
_OURS = (
    *(CARD, PICTURE, LOG, RECORD, TOKENS, ADAPTER, CHECKPOINTS),
    *("config.json", "generation_config.json", "model*.safetensors*", "adapter_*"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("chat_template*", "additional_chat_templates", "response_template*", ".*.draft"),
)


def check(out: Path) -> None:
    """Refuse a folder with something in it that is no training of ours."""
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"{out} is a file, and a model needs a folder. Use another --output-dir.")
    names = sorted(path.name for path in out.iterdir())
    # A run that was killed before its record was written leaves tokens, and nothing else of worth.
    if RECORD in names or set(names) <= {TOKENS, LOCK}:
        return
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    raise RunError(
        f"{out} is not empty ({names[0]}{more}) and holds no training of Ludus: there is no "
        f"{RECORD} in it. Use another --output-dir."
    )


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keep other runs out of the folder.

    The lock is the system's: it goes when its holder does, however that ended. A folder in which
    nothing came to be goes with it.
    """
    from filelock import FileLock, Timeout

    file = out / LOCK
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


def clear(out: Path) -> None:
    """Remove an earlier run. Its record goes last: without it the rest would be a stranger's."""
    for path in sorted(_ours(out), key=lambda path: path.name == RECORD):
        _remove(path)


def tidy(out: Path) -> None:
    """Remove what only a run under way needs."""
    for name in (TOKENS, CHECKPOINTS):
        _remove(out / name)


def abandon(out: Path) -> None:
    """Leave no trace of a run that was refused before it began."""
    if not (out / RECORD).exists():
        _remove(out / TOKENS)


def _ours(out: Path) -> Iterator[Path]:
    for path in out.iterdir() if out.is_dir() else ():
        if any(fnmatch(path.name, pattern) for pattern in _OURS):
            yield path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
