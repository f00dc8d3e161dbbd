"""Process-wide settings during training: libraries are silenced, TensorBoard logs get a folder.

Everything is restored at the end.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ludus.policy.hf_loading import suppress_hf_logging
from ludus.train.output.training_folder import TENSORBOARD_DIR

_QUIET_LOGGERS = ("accelerate", "datasets", "peft", "torch", "trl")
_TENSORBOARD = "TENSORBOARD_LOGGING_DIR"


@contextmanager
def training_process(out: Path) -> Iterator[None]:
    """Silence progress bars, logs and warnings of libraries: Ludus shows the progress itself.

    By default TensorBoard logs would be written among the checkpoints, and removed with them.
    """
    variables = {
        "TQDM_DISABLE": "1",
        _TENSORBOARD: os.environ.get(_TENSORBOARD) or str(out / TENSORBOARD_DIR),
        # TRL warns that experimental features may change; its minor version is pinned for that.
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    with (
        _environment_variables(variables),
        _suppress_datasets_progress(),
        _suppress_library_logs(),
        suppress_hf_logging(),
    ):
        try:
            yield
        finally:
            gc.collect()


@contextmanager
def _environment_variables(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _suppress_datasets_progress() -> Iterator[None]:
    """Hide the progress bars of `datasets` in the process that trains."""
    import datasets

    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            datasets.enable_progress_bars()


@contextmanager
def _suppress_library_logs() -> Iterator[None]:
    """Silence the loggers of training libraries in the process that trains."""
    levels = {name: logging.getLogger(name).level for name in _QUIET_LOGGERS}
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
