"""The folder of a run is one run's at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from policy.models import saved

from ludus import sft
from ludus.errors import RunError
from ludus.train.distributed import Distributed
from ludus.train.output import training_folder
from train.lessons import quick, sft_data

HOLDING = """
import sys
from pathlib import Path
from ludus.train.distributed import Distributed
from ludus.train.output.training_folder import lock_folder

with lock_folder(Path(sys.argv[1]), Distributed()):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_runs_at_once_do_not_meet_in_one_folder(tmp_path: Path) -> None:
    base, data = str(saved(tmp_path / "base")), sft_data(tmp_path / "d", rows=2)
    out = tmp_path / "out"
    command = [sys.executable, "-c", HOLDING, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        (out / "tokens").mkdir()
        for overwrite in (False, True):
            with pytest.raises(RunError, match="Another process"):
                sft(data, base, out, quick(), overwrite=overwrite)
        assert {path.name for path in out.iterdir()} == {training_folder.LOCK_FILE, "tokens"}
        other.kill()
    # A lock that nobody holds is no lock, though its file is still there.
    assert (out / training_folder.LOCK_FILE).exists()
    assert sft(data, base, out, quick()).steps == 1
    assert not (out / training_folder.LOCK_FILE).exists()


def test_a_folder_in_which_nothing_came_to_be_goes(tmp_path: Path) -> None:
    out = tmp_path / "models" / "out"
    with training_folder.lock_folder(out, Distributed()):
        assert [path.name for path in out.iterdir()] == [training_folder.LOCK_FILE]
    assert not out.exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunError, match="Not a directory"),
        training_folder.lock_folder(tmp_path / "file" / "out", Distributed()),
    ):
        raise AssertionError("it was held")
