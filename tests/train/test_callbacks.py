"""When checkpoints are saved."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ludus.train.callbacks import RunCallback
from ludus.train.distributed import Distributed
from ludus.train.result import NoProgress


@pytest.mark.parametrize(
    ("step_seconds", "expected"),
    [
        (1, [599, 1198]),
        (250, [2, 4, 6, 8]),
        (541, [1, 2, 3, 4]),
        (3600, [1, 2, 3, 4]),
    ],
)
def test_checkpoints_are_no_further_apart_than_the_interval_or_one_step(
    step_seconds: int, expected: list[int], tmp_path: Path
) -> None:
    now = 0.0
    callback = RunCallback(
        tmp_path, NoProgress(), Distributed(), checkpoint_every=600, clock=lambda: now
    )
    state = SimpleNamespace(global_step=0, max_steps=10_000, epoch=0.5)
    callback.on_train_begin(None, state, None, trainer=None)
    saved: list[int] = []
    while len(saved) < len(expected):
        now += step_seconds
        state.global_step += 1
        control = SimpleNamespace(should_save=False)
        callback.on_step_end(None, state, control, trainer=None)
        if control.should_save:
            saved.append(state.global_step)
    assert saved == expected
