"""`ludus doctor` as a program."""

from __future__ import annotations

import json
from pathlib import Path

from ludus_process import run_ludus


def test_a_complete_installation_is_reported_with_exit_code_0() -> None:
    done = run_ludus("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["ok"]
    found = {finding["subject"]: finding for finding in report["findings"]}
    assert {"Python", "packages", "[train]", "PyTorch", "GPU", "bubblewrap"} <= found.keys()


def test_something_broken_is_named_with_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_ludus("doctor", env={"LUDUS_CACHE": str(tmp_path / "file")})
    assert done.returncode == 1
    broken = done.stdout.partition("Broken:")[2]
    assert "Ludus cache" in broken and "LUDUS_CACHE" in broken
    assert "[train]" in done.stdout
