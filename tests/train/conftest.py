from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from train.small_disks import Resize


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Resize]]:
    """A small file system, and a function that resizes it."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
        return subprocess.run(command, capture_output=True).returncode == 0

    if not shutil.which("mount") or os.geteuid() or not mount("size=64k"):
        pytest.skip("only root can mount a small file system, and not in every container")
    try:
        yield folder, lambda size: None if mount("remount", f"size={size}") else pytest.fail(size)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
