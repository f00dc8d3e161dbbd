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


@pytest.mark.parametrize(("step_seconds", "steps"), [(10, 59), (100, 5), (700, 1)])
def test_a_run_ends_before_a_step_that_would_be_too_late(
    step_seconds: int, steps: int, tmp_path: Path
) -> None:
    """With the time that the model takes to be written."""
    now = 0.0
    callback = RunCallback(
        tmp_path, NoProgress(), Distributed(), checkpoint_every=1e9, deadline=600, clock=lambda: now
    )
    state = SimpleNamespace(global_step=0, max_steps=10_000, epoch=0.5)
    weights = SimpleNamespace(numel=lambda: 100_000_000)
    model = SimpleNamespace(parameters=lambda: [weights])
    callback.on_train_begin(None, state, None, trainer=SimpleNamespace(model=model))
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    while not control.should_training_stop:
        now += step_seconds
        state.global_step += 1
        callback.on_step_end(None, state, control, trainer=None)
    assert (state.global_step, control.should_save) == (steps, True)
    assert callback.stop_reason == "out of time"
