"""Locking of the output folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from policy.models import saved

from ludus import sft
from ludus.data.files import LOCK_FILE
from ludus.errors import RunError
from ludus.train.distributed import Distributed
from ludus.train.output import training_folder
from train.sample_rows import sft_data
from train.short_runs import train_config

LOCKING_PROGRAM = """
import sys
from pathlib import Path
from ludus.train.distributed import Distributed
from ludus.train.output.training_folder import lock_folder

with lock_folder(Path(sys.argv[1]), Distributed()):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_in_the_same_folder_raises(tmp_path: Path) -> None:
    base, data = str(saved(tmp_path / "base")), sft_data(tmp_path / "d", rows=2)
    out = tmp_path / "out"
    command = [sys.executable, "-c", LOCKING_PROGRAM, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        (out / "tokens").mkdir()
        for overwrite in (False, True):
            with pytest.raises(RunError, match="Another process"):
                sft(data, base, out, train_config(), overwrite=overwrite)
        assert {path.name for path in out.iterdir()} == {LOCK_FILE, "tokens"}
        other.kill()
    # The lock of a killed process is released, though its file is still there.
    assert (out / LOCK_FILE).exists()
    assert sft(data, base, out, train_config()).steps == 1
    assert not (out / LOCK_FILE).exists()


def test_a_folder_that_stays_empty_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "models" / "out"
    with training_folder.lock_folder(out, Distributed()):
        assert [path.name for path in out.iterdir()] == [LOCK_FILE]
    assert not out.exists()


def test_a_folder_that_cannot_be_created_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunError, match="Not a directory"),
        training_folder.lock_folder(tmp_path / "file" / "out", Distributed()),
    ):
        raise AssertionError("it was locked")
