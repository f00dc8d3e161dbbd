"""The wait policy of OpenMP's threads, which is read when torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

AT_IMPORT_OF_TORCH = """
import os, sys
from pathlib import Path
class Torch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            Path("policy").write_text(os.environ.get("OMP_WAIT_POLICY", ""))
            os._exit(0)
sys.meta_path.insert(0, Torch())
"""
IN_THE_LIBRARY = ("-c", "from ludus.policy import device; device.choose_device()")
IN_THE_PROGRAM = ("-m", "ludus", "doctor")
CHILD = "import ludus, subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'])"


@pytest.mark.parametrize("arguments", [IN_THE_LIBRARY, IN_THE_PROGRAM, ("-c", CHILD)])
@pytest.mark.parametrize(("given", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(
    tmp_path: Path, arguments: Sequence[str], given: str | None, policy: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT_OF_TORCH)
    env = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    env["PYTHONPATH"] = os.pathsep.join((str(tmp_path), env.get("PYTHONPATH", "")))
    if given:
        env["OMP_WAIT_POLICY"] = given
    subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=env, check=True)
    assert (tmp_path / "policy").read_text() == policy
