"""Where a model runs, and in which numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ludus.errors import ConfigError
from ludus.policy.device import _cpu_flags, choose_device, choose_dtype, default_dtype


def machine(monkeypatch: pytest.MonkeyPatch, *, cuda: int = 0, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"), [(2, True, "cuda"), (0, True, "mps"), (0, False, "cpu")]
)
def test_the_fastest_device_is_taken(
    monkeypatch: pytest.MonkeyPatch, cuda: int, mps: bool, chosen: str
) -> None:
    machine(monkeypatch, cuda=cuda, mps=mps)
    assert choose_device() == chosen
    assert choose_device("cpu") == "cpu"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("cuda", r"^The device cuda was asked for, and torch sees none here\. Use cpu"),
        ("cuda:1", r"^The device cuda:1 was asked for"),
        ("mps", r"^The device mps was asked for"),
        ("cudda", r"^Unknown device 'cudda'\. Did you mean 'cuda'\?"),
        ("cuda:x", r"^Unknown device 'cuda:x'"),
        ("cuda:", r"^Unknown device 'cuda:'"),
        ("", r"^Unknown device ''\. Write cuda, cuda:1, mps or cpu\."),
    ],
)
def test_a_device_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, asked: str, words: str
) -> None:
    machine(monkeypatch)
    with pytest.raises(ConfigError, match=words):
        choose_device(asked)


def test_devices_are_counted_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, cuda=2)
    assert choose_device("cuda:1") == "cuda:1"
    with pytest.raises(ConfigError, match=r"^There is no cuda:2 here: torch sees 2"):
        choose_device("cuda:2")


@pytest.mark.parametrize(
    ("asked", "meant"), [("bf16", "bfloat16"), ("fp16", "float16"), ("float32", "float32")]
)
def test_numbers_have_a_long_and_a_short_name(asked: str, meant: str) -> None:
    assert choose_dtype(asked, "cpu") == meant


def test_unknown_numbers_are_one_line() -> None:
    with pytest.raises(ConfigError, match=r"Unknown dtype 'bfloat61'\. Did you mean 'bfloat16'\?$"):
        choose_dtype("bfloat61", "cpu")


@pytest.mark.parametrize(
    ("device", "has_bf16", "chosen"),
    [
        ("cuda", True, "bfloat16"),
        ("cuda:1", False, "float16"),
        ("cpu", True, "bfloat16"),
        ("cpu", False, "float32"),
    ],
)
def test_the_numbers_are_those_that_the_device_is_fastest_in(
    device: str, has_bf16: bool, chosen: str
) -> None:
    assert default_dtype(device, has_bf16=has_bf16) == chosen


@pytest.mark.parametrize(("generation", "chosen"), [((7, 5), "float16"), ((9, 0), "bfloat16")])
def test_a_card_that_only_emulates_bfloat16_does_not_use_it(
    monkeypatch: pytest.MonkeyPatch, generation: tuple[int, int], chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation)
    assert choose_dtype(None, "cuda:0") == chosen


def test_what_a_processor_can_do_is_read_where_the_system_tells_it(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("model name\t: avx512_bf16?\nflags\t\t: fpu avx2 amx_bf16\n")
    assert _cpu_flags(told) == {"fpu", "avx2", "amx_bf16"}
    assert _cpu_flags(tmp_path / "nowhere") == set()
