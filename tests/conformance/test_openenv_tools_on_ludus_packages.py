"""OpenEnv's own validation and discovery, of what `init`, `build` and `push env` write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from cli.collect_cli import CLEAN_ENV, PYTHONPATH
from ludus_process import run_ludus, served_by_program
from openenv.cli._cli_utils import validate_env_structure
from openenv.cli._validation import validate_multi_mode_deployment
from openenv.validation import Level, Verdict, run_validation

PIP_INSTALL = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")


def write(tmp_path: Path, *command: str) -> None:
    done = run_ludus(*command, cwd=tmp_path, env=CLEAN_ENV)
    assert done.returncode == 0, done.stderr


def assert_valid(folder: Path) -> None:
    report = run_validation(folder, max_level=Level.STATIC, skip_build=True)
    assert report.verdict is Verdict.PASS, report.results


def assert_can_be_pushed(folder: Path) -> None:
    """As `openenv push` checks it; a folder `outputs` is only recommended."""
    assert_valid(folder)
    assert not [each for each in validate_env_structure(folder) if "outputs/" not in each]
    # `openenv init` writes no lock file either where `uv` is not installed.
    _, issues = validate_multi_mode_deployment(folder)
    assert [issue for issue in issues if "uv.lock" not in issue] == []


def test_a_new_package_is_valid(tmp_path: Path) -> None:
    write(tmp_path, "init", "find-number")
    package = tmp_path / "find_number"
    assert_valid(package)
    manifest = yaml.safe_load((package / "openenv.yaml").read_text())
    assert manifest["name"] == "find_number" and manifest["app"] == "server.app:app"
    script = "from server.app import app; from find_number.client import FindNumberEnv"
    path = os.pathsep.join((PYTHONPATH, str(package / "src")))
    env = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", script], cwd=package, env=env, check=True)


def test_the_readme_of_a_new_package_makes_the_folder_for_openenv_push(tmp_path: Path) -> None:
    write(tmp_path, "init", "find-number")
    package, site = tmp_path / "find_number", tmp_path / "site"
    install = [sys.executable, *PIP_INSTALL, "--target", str(site), str(package)]
    subprocess.run(install, check=True, timeout=120)
    lines = [line.split() for line in (package / "README.md").read_text().splitlines()]
    (build,) = (line[1:] for line in lines if line[:2] == ["ludus", "build"])
    (folder,) = (line[2] for line in lines if line[:2] == ["openenv", "push"])
    path = os.pathsep.join((PYTHONPATH, str(package / "src"), str(site)))
    done = run_ludus(*build, cwd=package, env={**CLEAN_ENV, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert_can_be_pushed(package / folder)


def test_a_build_context_is_valid_and_can_be_pushed(tmp_path: Path) -> None:
    write(tmp_path, "build", "catch", "--no-build")
    context = tmp_path / "build/catch"
    assert_can_be_pushed(context)
    head = yaml.safe_load((context / "README.md").read_text().split("---")[1])
    assert head["base_path"] == "/web" and head["app_port"] == 8000


def test_the_manifest_declares_the_rewards_of_the_environment(tmp_path: Path) -> None:
    classes = "".join(
        f"class Mine{number}(Catch):\n    max_reward = {top}\n"
        for number, top in enumerate((5, 0, None))
    )
    (tmp_path / "mine.py").write_text(f"from ludus.envs.catch import Catch\n{classes}")
    declared = {}
    for spec in ("catch", "echo", "mine:Mine0", "mine:Mine1", "mine:Mine2"):
        write(tmp_path, "build", spec, "--no-build", "-o", spec)
        assert_valid(tmp_path / spec)
        manifest = yaml.safe_load((tmp_path / spec / "openenv.yaml").read_text())
        declared[spec] = manifest["validation"]["reward"]["range"]
    any_reward = [-1_000_000.0, 1_000_000.0]
    assert declared == {
        "catch": [0.0, 1.0],
        "echo": any_reward,
        "mine:Mine0": [0.0, 5.0],
        "mine:Mine1": any_reward,
        "mine:Mine2": any_reward,
    }


def test_autoenv_finds_the_client_of_an_installed_space(tmp_path: Path) -> None:
    write(tmp_path, "build", "catch", "--no-build")
    site = tmp_path / "site"
    install = [sys.executable, *PIP_INSTALL, "--target", str(site), str(tmp_path / "build/catch")]
    subprocess.run(install, check=True, timeout=120)
    assert {path.name for path in site.iterdir()} >= {"catch_env"}
    assert not (site / "ludus").exists()
    script = """
import sys
from openenv import AutoAction, AutoEnv
with AutoEnv.from_env("catch", base_url=sys.argv[1]).sync() as client:
    client.reset(seed=1)
    action = AutoAction.from_env("catch")
    print(type(client).__name__, client.step(action(direction="stay")).done)
"""
    env = {**os.environ, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with served_by_program("catch") as server:
        done = subprocess.run(
            [sys.executable, "-c", script, server.url], env=env, capture_output=True, text=True
        )
    assert done.stdout.split()[-1] == "False", done.stdout + done.stderr
