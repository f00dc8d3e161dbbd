"""`ludus report`: its options and its output."""

from __future__ import annotations

from pathlib import Path

from ludus_process import run_ludus

from cli.collect_cli import CLEAN_ENV


def test_a_report_is_one_page(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert run_ludus("collect", "catch", "-n", "4", "-o", str(run), env=CLEAN_ENV).returncode == 0
    page = run_ludus("report", str(run), cwd=tmp_path, env=CLEAN_ENV)
    assert (page.returncode, page.stderr) == (0, "")
    assert page.stdout.startswith("report: report.html (")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_a_wrong_folder_is_one_line(tmp_path: Path) -> None:
    done = run_ludus("report", str(tmp_path), "-o", "x.html", cwd=tmp_path, env=CLEAN_ENV)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and str(tmp_path) in done.stderr
    assert not (tmp_path / "x.html").exists()
