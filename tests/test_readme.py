"""The Python of the README and the guides runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from policy.models import saved
from world import serving

ROOT = Path(__file__).parents[1]


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


PLAY, ENVIRONMENT, COLLECT = blocks("README.md")


def run(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_plays_wordle(tmp_path: Path) -> None:
    assert "C R A N E" in run(PLAY, tmp_path)


def test_the_readme_collects_solved_episodes(tmp_path: Path) -> None:
    assert run(COLLECT, tmp_path).startswith("200 solved, in runs/reasoning_gym-chain_sum-")


def test_the_collector_in_the_docs_plays_groups(tmp_path: Path) -> None:
    *_, block = blocks("docs/collecting.md")
    lines = run(block, tmp_path).splitlines()
    assert lines[0].startswith("1.0 runs/catch-")
    assert len(lines) == 21
    assert len({line.split()[1] for line in lines[1:]}) == 5


@pytest.fixture(scope="module")
def curated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that the curator in the docs ran in, and what it printed."""
    (block,) = blocks("docs/curating.md")
    folder = tmp_path_factory.mktemp("curated")
    return folder, run(block, folder).strip()


def test_the_curator_in_the_docs_splits_sums(curated: tuple[Path, str]) -> None:
    assert re.fullmatch(r"\{'train': \d+, 'test': \d+\} \{.*\}", curated[1])


@pytest.mark.slow
def test_the_trainer_in_the_docs_trains_on_what_was_curated(curated: tuple[Path, str]) -> None:
    (training,), folder = blocks("docs/training.md"), curated[0]
    model = saved(folder / "model")
    told = run(training.replace("MODEL", str(model)), folder)
    assert re.fullmatch(r"\d+ \d+\.\d+ models/sums", told.strip()), told


def test_the_readme_environment_passes_its_checks(tmp_path: Path) -> None:
    (tmp_path / "doubling.py").write_text(ENVIRONMENT)
    code = (
        "import asyncio; from ludus.check import run_checks\n"
        "print(asyncio.run(run_checks('doubling:Doubling')).passed)"
    )
    assert run(code, tmp_path).strip() == "True"


def test_the_client_from_openenv_scores_an_answer(tmp_path: Path) -> None:
    block, *_ = blocks("docs/coming-from-openenv.md")
    with serving("reasoning_gym") as served:
        out = run(block.replace("http://localhost:8000", served.url), tmp_path)
    assert re.fullmatch(r"0\.\d+ 0\.\d+ True|1\.0 1\.0 True", out.strip()), out
