"""What `make demo` runs."""

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "oracle_over_the_wire.py"


def test_the_oracle_solves_every_episode_over_the_wire(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "catch", "--episodes", "7"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    told = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines() if line.split()}
    assert "mean reward" in done.stdout and told["solved"] == "7"
