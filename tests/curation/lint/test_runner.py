"""Running the checks over files: counting, sampling, showing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from policy.conversations import TALK, said
from tiny_tokenizers import of_family

from curation.lint.checking import write_rows
from ludus.curation.lint.report import MAX_EXAMPLES, LintReport
from ludus.curation.lint.runner import find_lint_files, lint_files, sample_rows
from ludus.curation.lint.student import Student
from ludus.errors import RunError


def distinct_rows(count: int) -> list[dict[str, Any]]:
    """Rows that all differ."""
    return [
        {"messages": [said("user", f"Say {at}."), said("assistant", "No.")], "reward": 1.0}
        for at in range(count)
    ]


def lint(path: Path, student: str | None = None, **how: Any) -> LintReport:
    known = Student(student, of_family(student)) if student else None
    return lint_files(find_lint_files(path), known, **how)


def test_samples_are_stratified_and_repeatable() -> None:
    sample = sorted(sample_rows(1000, 10, seed=1))
    assert [at // 100 for at in sample] == list(range(10))
    assert sample_rows(1000, 10, seed=1) == set(sample) != sample_rows(1000, 10, seed=2)
    assert sample_rows(3, 10, seed=1) == {0, 1, 2} and sample_rows(3, 0, seed=1) == set()


def test_a_sample_is_rendered_and_every_row_checked(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [*distinct_rows(30), {"messages": []}])
    report = lint(path, "llama3", sample=5, show=2)
    assert (report.rows, report.rendered, len(report.shown)) == (31, 5, 2)
    (empty,) = report.findings
    assert (empty.check, empty.rows, empty.share) == ("no-assistant", 1, 1 / 31)
    assert report.lengths is not None and report.lengths.count + report.lengths.refused == 5


def test_without_a_sample_every_row_is_rendered(tmp_path: Path) -> None:
    report = lint(write_rows(tmp_path / "rows.jsonl", distinct_rows(30)), "llama3", sample=None)
    assert report.rendered == 30 and report.lengths is not None and report.lengths.count == 30


def test_a_row_counts_once_per_check_and_examples_are_limited(tmp_path: Path) -> None:
    bad = {"messages": [said("critic", "a"), said("critic", "b"), said("assistant", "c")]}
    rows = [{**bad, "tools": [{"name": str(at)}]} for at in range(25)]
    (roles,) = lint(write_rows(tmp_path / "rows.jsonl", rows)).findings
    assert (roles.rows, roles.share, len(roles.examples)) == (25, 1.0, MAX_EXAMPLES)
    assert roles.examples[0][0].line == 1


def test_duplicates_are_compared_by_trained_columns(tmp_path: Path) -> None:
    rows = [{**TALK, "episode_id": "a"}, *distinct_rows(2), {**TALK, "episode_id": "b"}]
    (found,) = lint(write_rows(tmp_path / "rows.jsonl", rows)).findings
    assert (found.check, found.level, found.rows) == ("duplicate", "warning", 1)
    assert found.examples[0][0].line == 4 and "line 1" in found.examples[0][1]


def test_a_test_row_that_is_trained_on_is_an_error(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", distinct_rows(3))
    write_rows(tmp_path / "test.jsonl", distinct_rows(1))
    report = lint(tmp_path)
    (found,) = report.findings
    assert (found.check, found.level) == ("test-in-train", "error")
    assert f"{tmp_path / 'train.jsonl'}:1" in found.examples[0][1]
    assert list(report.files.values()) == [3, 1]


def test_a_malformed_row_does_not_hide_the_others(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"messages": 1}, TALK, TALK])
    assert [each.check for each in lint(path).findings] == ["malformed", "duplicate"]


def test_the_worst_level_comes_first_and_decides(tmp_path: Path) -> None:
    warned = lint(write_rows(tmp_path / "warned.jsonl", [TALK, TALK]))
    assert warned.passed(strict=False) and not warned.passed(strict=True)
    failed = lint(write_rows(tmp_path / "failed.jsonl", [TALK, TALK, {"messages": []}]))
    assert [each.level for each in failed.findings] == ["error", "warning"]
    assert not failed.passed(strict=False)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "rows.jsonl:2"),
        ("[]", "rows.jsonl:2"),
        ('{"text": "a"}', "rows.jsonl:2"),
    ],
)
def test_a_line_that_is_no_row_raises(line: str, why: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", distinct_rows(1))
    path.write_text(path.read_text() + line)
    with pytest.raises(RunError, match=why):
        lint(path)


def test_an_empty_file_raises(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n\n")
    with pytest.raises(RunError, match=r"rows.jsonl"):
        lint(tmp_path / "rows.jsonl")


def test_a_folder_without_data_raises(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"train.jsonl"):
        lint(tmp_path)
