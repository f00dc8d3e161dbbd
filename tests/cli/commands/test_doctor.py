"""`ludus doctor`: what it finds, and its exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from ludus_process import run_ludus

from ludus.cli.commands.doctor import (
    Finding,
    check_accounts,
    check_packages,
    check_programs,
    check_torch,
)
from ludus.data.run_folder import DISTRIBUTION


def test_a_complete_installation_is_reported_with_exit_code_0() -> None:
    done = run_ludus("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["ok"]
    found = {finding["subject"]: finding for finding in report["findings"]}
    assert {"Python", "packages", "[train]", "PyTorch", "GPU", "bubblewrap"} <= found.keys()


def test_something_broken_is_named_with_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart')\n")
    paths = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = run_ludus("doctor", env={"PYTHONPATH": paths})
    assert done.returncode == 1
    assert "cannot be imported: ImportError: libcudart" in done.stdout
    assert "pip install --force-reinstall torch" in done.stdout and "[train]" in done.stdout


def by_subject(findings: object) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}  # type: ignore[attr-defined]


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_torch_that_cannot_be_imported_is_broken(tmp_path: Path) -> None:
    python = write_program(tmp_path / "python", "echo 'ImportError: libcudart' >&2; exit 1")
    (found,) = check_torch(str(python))
    assert found.status == "broken" and found.detail.endswith("ImportError: libcudart")


def test_gpus_are_named_with_their_memory(tmp_path: Path) -> None:
    facts = '{"version": "2.9", "gpus": [["H200", 150323855360]], "mps": false}'
    python = write_program(tmp_path / "python", f"echo '{facts}'")
    found = by_subject(check_torch(str(python)))
    assert found["PyTorch"].detail == "2.9"
    assert (found["GPU"].status, found["GPU"].detail) == ("ok", "H200 (140 GiB)")


def test_a_driver_without_a_usable_gpu_is_worth_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "bin" / "nvidia-smi", "exit 0")
    python = write_program(
        tmp_path / "python", """echo '{"version": "2.9", "gpus": [], "mps": false}'"""
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert by_subject(check_torch(str(python)))["GPU"].status == "warning"


def test_programs_that_are_not_there_are_optional_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = by_subject(check_programs())
    assert found["bubblewrap"].status == found["container engine"].status == "missing"
    # The extra is installed here, so the browser is wanted.
    assert found["Chromium"].status == "warning" and "apt install chromium" in (
        found["Chromium"].advice
    )


def test_a_sandbox_that_the_kernel_refuses_is_worth_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "bwrap", "echo 'setting up uid map: Permission denied' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = by_subject(check_programs())["bubblewrap"]
    assert found.status == "warning" and "Permission denied" in found.detail


def test_keys_are_found_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    found = by_subject(check_accounts())
    assert found["openai key"].status == "ok" and "secret" not in str(found)
    assert found["anthropic key"].status == "missing"


def findings(required: Iterable[str]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_packages(required)}


def test_this_installation_is_complete() -> None:
    found = {
        finding.subject: finding.status
        for finding in check_packages(distribution(DISTRIBUTION).requires or ())
    }
    assert found["packages"] == found["[train]"] == found["[serve]"] == "ok"
    assert "[all]" not in found


def test_a_missing_or_old_package_that_every_command_needs_is_broken() -> None:
    found = findings(["no-such-package>=1", "pydantic<1", "rich"])["packages"]
    assert found.status == "broken"
    assert "no-such-package is not installed" in found.detail and "<1 is needed" in found.detail


def test_a_missing_extra_names_the_command_that_installs_it() -> None:
    found = findings(["no-such-package>=1; extra == 'hub'"])["[hub]"]
    assert (found.status, found.advice) == ("missing", "pip install 'ludus-rl[hub]'")


def test_an_extra_with_a_wrong_version_is_broken() -> None:
    found = findings(["rich<0.1; extra == 'hub'"])["[hub]"]
    assert found.status == "broken" and "<0.1 is needed" in found.detail


def test_an_incomplete_extra_names_what_is_missing() -> None:
    required = ["rich; extra == 'hub'", "no-such-package; extra == 'hub'"]
    found = findings(required)["[hub]"]
    assert (found.status, found.detail) == ("missing", "no-such-package is not installed")
