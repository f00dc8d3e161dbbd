"""Programs, folders and keys of a machine that has them, or has not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ludus.cli.installation import machine
from ludus.cli.installation.findings import Finding


def by_subject(findings: object) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}  # type: ignore[attr-defined]


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_torch_that_cannot_be_imported_is_broken(tmp_path: Path) -> None:
    python = write_program(tmp_path / "python", "echo 'ImportError: libcudart' >&2; exit 1")
    (found,) = machine.check_torch(str(python))
    assert found.status == "broken" and found.detail.endswith("ImportError: libcudart")


def test_gpus_are_named_with_their_memory(tmp_path: Path) -> None:
    facts = '{"version": "2.9", "gpus": [["H200", 150323855360]], "mps": false}'
    python = write_program(tmp_path / "python", f"echo '{facts}'")
    found = by_subject(machine.check_torch(str(python)))
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
    assert by_subject(machine.check_torch(str(python)))["GPU"].status == "warning"


def test_programs_that_are_not_there_are_optional_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = by_subject(machine.check_programs())
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
    found = by_subject(machine.check_programs())["bubblewrap"]
    assert found.status == "warning" and "Permission denied" in found.detail


def test_a_cache_that_cannot_be_written_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LUDUS_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.chdir(tmp_path)
    found = by_subject(machine.check_folders())
    assert found["Ludus cache"].status == "broken"
    assert "LUDUS_CACHE" in found["Ludus cache"].advice
    assert found["this folder"].status in ("ok", "warning")


def test_keys_are_found_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    found = by_subject(machine.check_accounts())
    assert found["openai key"].status == "ok" and "secret" not in str(found)
    assert found["anthropic key"].status == "missing"


def test_the_environments_of_this_installation_load() -> None:
    found, *failed = machine.check_environments()
    assert "wordle" in found.detail and not failed
