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

from ludus.policy.quiet import suppress_hf_logging
from ludus.train.folder import CURVES

_TALKERS = ("accelerate", "datasets", "peft", "torch", "trl")
_BARS, _TENSORBOARD = "TQDM_DISABLE", "TENSORBOARD_LOGGING_DIR"
_EXPERIMENTS = "TRL_EXPERIMENTAL_SILENCE"


@contextmanager
def surroundings(out: Path) -> Iterator[None]:
    """Training shows itself through the watch; bars and warnings of others would lie across it.

    TensorBoard's curves would go among the checkpoints, and away with them.
    """
    curves = os.environ.get(_TENSORBOARD) or str(out / CURVES)
    # TRL warns of what may change in it; its minor version is pinned for that.
    with (
        _set({_BARS: "1", _TENSORBOARD: curves, _EXPERIMENTS: "1"}),
        _without_bars(),
        _hushed(),
        suppress_hf_logging(),
    ):
        try:
            yield
        finally:
            gc.collect()


@contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
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
def _without_bars() -> Iterator[None]:
    import datasets

    hidden = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            datasets.enable_progress_bars()


@contextmanager
def _hushed() -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in _TALKERS}
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
