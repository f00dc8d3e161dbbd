"""Disks without enough space: known before training, or found out while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from policy.models import saved

from ludus import sft
from ludus.errors import RunError
from ludus.train import Lora
from train.sample_rows import sft_data
from train.short_runs import train_config
from train.small_disks import Resize, claim_free, one_line


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base")))


@pytest.mark.parametrize(
    ("lora", "free", "needed"),
    [
        (None, 20_000, "Training needs"),
        (Lora(rank=2), 20_000, "Training needs"),
    ],
)
def test_too_little_space_is_known_before_the_first_step(
    tmp_path: Path, base: str, monkeypatch: Any, lora: Lora | None, free: int, needed: str
) -> None:
    claim_free(monkeypatch, free)
    with pytest.raises(RunError, match=needed) as caught:
        sft(sft_data(tmp_path / "d"), base, tmp_path / "out", train_config(lora=lora))
    assert f"{free / 1e6:,.1f} MB are free" in one_line(caught)
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_full_of_tokens_leaves_nothing(
    tmp_path: Path, base: str, monkeypatch: Any, disk: tuple[Path, Resize]
) -> None:
    claim_free(monkeypatch, 1 << 40)
    with pytest.raises(RunError, match="full") as caught:
        sft(sft_data(tmp_path / "d", rows=300), base, disk[0] / "out", train_config())
    one_line(caught)
    assert not list(disk[0].iterdir())


@pytest.mark.parametrize("checkpoint_every", [0.0, 1e9], ids=["checkpoints", "the model"])
def test_after_a_full_disk_the_run_resumes_from_the_last_checkpoint(
    tmp_path: Path, base: str, monkeypatch: Any, disk: tuple[Path, Resize], checkpoint_every: float
) -> None:
    claim_free(monkeypatch, 1 << 40)
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
