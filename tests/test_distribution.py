"""The distribution is `ludus-rl`; `ludus` on PyPI is another package. The wheel is complete."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from recipe.small_recipes import REDUCED, save_models, set_flags

import ludus

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


def test_the_package_and_the_changelog_have_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] == version == ludus.__version__


@pytest.mark.parametrize("file", [*TEXTS, ROOT / "README.md"], ids=lambda file: file.name)
def test_nothing_tells_anybody_to_install_the_stranger(file: Path) -> None:
    told = [line for line in file.read_text().splitlines() if STRANGER.search(line)]
    assert not told


@pytest.fixture(scope="module")
def ludus_from_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of a wheel in a virtual environment that has only its dependencies beside it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(packages)
    # A path in a .pth file is not searched for further .pth files: Ludus itself is the wheel's.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return venv / "bin" / "python"


def run_python(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"LUDUS_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    program = [str(python), *arguments]
    return subprocess.run(program, cwd=folder, env=env, capture_output=True, text=True)


def test_the_wheel_brings_its_recipes(ludus_from_wheel: Path, tmp_path: Path) -> None:
    where = "import ludus; print(ludus.__file__)"
    file = run_python(ludus_from_wheel, tmp_path, "-c", where)
    assert str(ludus_from_wheel.parents[1]) in file.stdout
    dry_run = ("-m", "ludus", "run", "quickstart", "--dry-run")
    planned = run_python(ludus_from_wheel, tmp_path, *dry_run)
    assert planned.returncode == 0 and "ludus train sft" in planned.stdout, planned.stderr


@pytest.mark.slow
def test_the_wheel_runs_the_quickstart(ludus_from_wheel: Path, tmp_path: Path) -> None:
    save_models(tmp_path / "cache", tmp_path)
    flags = set_flags(REDUCED["quickstart"])
    done = run_python(ludus_from_wheel, tmp_path, "-m", "ludus", "run", "quickstart", *flags)
    assert done.returncode == 0, done.stderr
    assert "To go further" in done.stdout
    assert (tmp_path / "runs/quickstart/eval/summary.json").is_file()
