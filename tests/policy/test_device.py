"""The choice of device and dtype."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ludus.errors import ConfigError
from ludus.policy import device
from ludus.policy.device import (
    choose_device,
    choose_dtype,
    device_names,
    gpu_memory_share,
    limited_gpu_memory,
)


def fake_devices(monkeypatch: pytest.MonkeyPatch, *, cuda: int = 0, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"), [(2, True, "cuda"), (0, True, "mps"), (0, False, "cpu")]
)
def test_the_fastest_device_is_the_default(
    monkeypatch: pytest.MonkeyPatch, cuda: int, mps: bool, expected: str
) -> None:
    fake_devices(monkeypatch, cuda=cuda, mps=mps)
    assert choose_device() == expected
    assert choose_device("cpu") == "cpu"


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ("cuda", "device cuda .* Use cpu"),
        ("cuda:1", "device cuda:1 "),
        ("mps", "device mps "),
        ("cudda", "'cudda'.*'cuda'"),
        ("cuda:x", "'cuda:x'"),
        ("cuda:", "'cuda:'"),
        ("", "''"),
    ],
)
def test_unavailable_devices_are_rejected(
    monkeypatch: pytest.MonkeyPatch, given: str, pattern: str
) -> None:
    fake_devices(monkeypatch)
    with pytest.raises(ConfigError, match=pattern):
        choose_device(given)


def test_devices_are_counted_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_devices(monkeypatch, cuda=2)
    assert choose_device("cuda:1") == "cuda:1"
    with pytest.raises(ConfigError, match="cuda:2"):
        choose_device("cuda:2")


@pytest.mark.parametrize(
    ("given", "expected"), [("bf16", "bfloat16"), ("fp16", "float16"), ("float32", "float32")]
)
def test_dtypes_have_a_long_and_a_short_name(given: str, expected: str) -> None:
    assert choose_dtype(given, "cpu") == expected


def test_unknown_dtypes_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"'bfloat61'.*'bfloat16'"):
        choose_dtype("bfloat61", "cpu")


@pytest.mark.parametrize(
    ("flags", "expected"), [("avx2 amx_bf16", "bfloat16"), ("avx2", "float32"), (None, "float32")]
)
def test_cpus_without_bfloat16_use_float32(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str | None, expected: str
) -> None:
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"flags\t: {flags}\n")
    monkeypatch.setattr(device, "CPU_INFO", tmp_path / "cpuinfo")
    assert choose_dtype(None, "cpu") == expected


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), "float16"), ((9, 0), "bfloat16")])
def test_gpus_that_emulate_bfloat16_use_float16(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda name: capability)
    assert choose_dtype(None, "cuda:0") == expected


def test_devices_are_named_once_for_each_process() -> None:
    assert len(device_names("cpu", 2)) == 2 and device_names("cpu")[0].startswith("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_decoder_s_cache_and_the_training_stay_within_the_share_of_the_run() -> None:
    gpu = torch.device("cuda", 0)
    total = torch.cuda.get_device_properties(gpu).total_memory
    with limited_gpu_memory(gpu, 0.1):
        assert gpu_memory_share(gpu) == pytest.approx(0.1 * total)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total // 5, dtype=torch.uint8, device=gpu)
    assert gpu_memory_share(gpu) == total
