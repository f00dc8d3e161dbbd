"""When a checkpoint falls due."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ludus.train.callbacks import RunCallback
from ludus.train.distributed import Distributed
from ludus.train.progress import NoProgress


@pytest.mark.parametrize(
    ("seconds", "saved"),
    [
        (1, [599, 1198]),
        (250, [2, 4, 6, 8]),
        (541, [1, 2, 3, 4]),
        (3600, [1, 2, 3, 4]),
    ],
)
def test_no_more_is_lost_than_the_time_between_two_or_one_step(
    seconds: int, saved: list[int], tmp_path: Path
) -> None:
    now = 0.0
    pace = RunCallback(tmp_path, NoProgress(), Distributed(), every=600, clock=lambda: now)
    state = SimpleNamespace(global_step=0, max_steps=10_000, epoch=0.5)
    pace.on_train_begin(None, state, None)
    found: list[int] = []
    while len(found) < len(saved):
        now += seconds
        state.global_step += 1
        control = SimpleNamespace(should_save=False)
        pace.on_step_end(None, state, control)
        if control.should_save:
            found.append(state.global_step)
    assert found == saved
