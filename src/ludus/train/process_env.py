"""What a process is like while it trains: silent but for the watch, and with a place for curves.

Everything is as before when it ends. What is trained is not its business.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ludus.policy.hf_logging import suppress_hf_logging
from ludus.train.output.training_folder import TENSORBOARD_DIR

_QUIET_LOGGERS = ("accelerate", "datasets", "peft", "torch", "trl")
_TQDM_VARIABLE, _TENSORBOARD_VARIABLE = "TQDM_DISABLE", "TENSORBOARD_LOGGING_DIR"
_TRL_VARIABLE = "TRL_EXPERIMENTAL_SILENCE"


@contextmanager
def training_process(out: Path) -> Iterator[None]:
    """Training shows itself through the watch; bars and warnings of others would lie across it.

    TensorBoard's curves would go among the checkpoints, and away with them.
    """
    curves = os.environ.get(_TENSORBOARD_VARIABLE) or str(out / TENSORBOARD_DIR)
    # TRL warns of what may change in it; its minor version is pinned for that.
    with (
        _environment_variables(
            {_TQDM_VARIABLE: "1", _TENSORBOARD_VARIABLE: curves, _TRL_VARIABLE: "1"}
        ),
        _without_progress_bars(),
        _without_log_messages(),
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
def _without_progress_bars() -> Iterator[None]:
    import datasets

    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            datasets.enable_progress_bars()


@contextmanager
def _without_log_messages() -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in _QUIET_LOGGERS}
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
