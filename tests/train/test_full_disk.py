"""Disks that are full during training."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy.models import saved

from ludus import sft
from ludus.errors import RunError
from train.sample_rows import sft_data
from train.short_runs import train_config
from train.small_disks import Resize, one_line


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base")))


def test_a_disk_that_is_full_of_tokens_leaves_nothing(
    tmp_path: Path, base: str, disk: tuple[Path, Resize]
) -> None:
    with pytest.raises(RunError, match="full") as caught:
        sft(sft_data(tmp_path / "d", rows=300), base, disk[0] / "out", train_config())
    one_line(caught)
    assert not list(disk[0].iterdir())


@pytest.mark.parametrize("checkpoint_every", [0.0, 1e9], ids=["checkpoints", "the model"])
def test_after_a_full_disk_the_run_resumes_from_the_last_checkpoint(
    tmp_path: Path, base: str, disk: tuple[Path, Resize], checkpoint_every: float
) -> None:
    folder, resize = disk
    weights = (Path(base) / "model.safetensors").stat().st_size
    # One checkpoint and a half, or half a model.
    resize(str(weights * 5 if not checkpoint_every else weights // 2 + 50_000))
    data, config = sft_data(tmp_path / "d"), train_config(checkpoint_every=checkpoint_every)
    with pytest.raises(RunError) as caught:
        sft(data, base, folder / "out", config)
    one_line(caught)
    assert not list((folder / "out").glob("model*"))
    resize("64m")
    result = sft(data, base, folder / "out", config)
    assert result.resumed_from == (None if checkpoint_every else 1)
    assert (folder / "out" / "model.safetensors").exists()
