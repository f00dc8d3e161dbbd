"""The distribution is `ludus-rl`; `ludus` on PyPI is a stranger's package."""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXTS = sorted(
    file
    for folder in ("src", "docs", "examples", "benchmarks")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in {".py", ".md", ".txt", ".toml"} and "words" not in file.parts
)
STRANGER = re.compile(r"""(pip install |dependencies = )[^\n]*(?<![\w./-])ludus(?!-rl|\w)""")


def test_the_program_is_installed_by_the_distribution_ludus_rl() -> None:
    points = distribution("ludus-rl").entry_points
    assert points.select(group="console_scripts")["ludus"].value == "ludus.cli.main:main"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line for lines in extras["optional-dependencies"].values() for line in lines]
    assert not [line for line in named if line.startswith("ludus") and "ludus-rl[" not in line]


@pytest.mark.parametrize("file", [*TEXTS, ROOT / "README.md"], ids=lambda file: file.name)
def test_nothing_tells_anybody_to_install_the_stranger(file: Path) -> None:
    told = [line for line in file.read_text().splitlines() if STRANGER.search(line)]
    assert not told
