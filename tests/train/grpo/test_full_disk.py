"""Disks that are full during GRPO."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ludus import grpo
from ludus.errors import RunError
from train.grpo.toy_environments import PICK, small_config
from train.short_runs import RecordingProgress
from train.small_disks import Resize, one_line


def weights_size(model: Path) -> int:
    return (model / "model.safetensors").stat().st_size


class FillingDisk(RecordingProgress):
    """Leaves too little space for the weights when a step is logged."""

    def __init__(self, disk: tuple[Path, Resize], model: Path, step: int) -> None:
        super().__init__()
        self.disk, self.room, self.full_at = disk, weights_size(model) // 2, step

    def step(self, line: Mapping[str, Any]) -> None:
        folder, resize = self.disk
        if line["step"] == self.full_at:
            sizes = os.statvfs(folder)
            resize(str((sizes.f_blocks - sizes.f_bfree) * sizes.f_frsize + self.room))


@pytest.mark.parametrize(
    ("full_at", "checkpoint_every", "error"),
    [(2, 0.0, "checkpoint of step 2"), (3, 1e9, "disk of .* full")],
    ids=["checkpoint", "model"],
)
def test_after_a_full_disk_the_run_resumes_from_the_last_checkpoint(
    model: Path,
    disk: tuple[Path, Resize],
    full_at: int,
    checkpoint_every: float,
    error: str,
) -> None:
    out, resize = disk[0] / "out", disk[1]
    resize("64m")
    config = small_config(steps=3, checkpoint_every=checkpoint_every)
    with pytest.raises(RunError, match=error) as caught:
        grpo(PICK, str(model), out, config, progress=FillingDisk(disk, model, full_at))
    one_line(caught)
    assert not list(out.glob("model*"))
    resize("64m")
    result = grpo(PICK, str(model), out, config)
    assert result.resumed_from == (None if checkpoint_every else 1)
    assert (out / "model.safetensors").exists()
