"""The examples run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(output: str) -> list[str]:
    """The numbers in the first line."""
    return re.findall(r"\d+", output.splitlines()[0])


def test_the_example_collects_once_and_finds_its_episodes_again(tmp_path: Path) -> None:
    first = run("collect_and_filter.py", tmp_path)
    assert numbers(first) == ["100", "100"] and "runs/example" in first.splitlines()[0]
    assert "wordle: 30 solved" in first
    assert ":chain_sum: 70 solved" in first
    again = run("collect_and_filter.py", tmp_path)
    assert numbers(again) == ["0", "100"]
