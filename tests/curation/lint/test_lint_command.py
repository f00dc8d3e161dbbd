"""`ludus lint` as a subprocess."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ludus_process import run_ludus
from policy.conversations import INSTRUCTED, PLAYED, TALK, said
from tiny_tokenizers import WORDS, of_family, student

from curation.lint.checking import write_rows
from ludus.curation.lint.report import ADVICE

CONTROL_CHARS = "\x1b]0;owned\x07[bold]x[/bold]"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and students."""
    root = tmp_path_factory.mktemp("lint")
    for family in ("qwen3", "llama3"):
        of_family(family).save_pretrained(root / family)
    student(WORDS).save_pretrained(root / "words")
    write_rows(root / "good.jsonl", [PLAYED, TALK, INSTRUCTED])
    write_rows(root / "twice.jsonl", [TALK, TALK])
    (root / "data").mkdir()
    write_rows(root / "data/train.jsonl", [TALK])
    write_rows(root / "data/test.jsonl", [INSTRUCTED])
    messages = [said("user", CONTROL_CHARS), said("assistant", CONTROL_CHARS)]
    write_rows(root / "steering.jsonl", [{"messages": messages}])
    prompt, played = PLAYED["messages"][:2], PLAYED["messages"][2:]
    pair = {"prompt": prompt, "chosen": played, "rejected": played[:1], "tools": PLAYED["tools"]}
    write_rows(root / "pairs.jsonl", [pair])
    (root / "empty.jsonl").write_text("")
    (root / "text.jsonl").write_text('{"text": "Once upon a time."}\n')
    (root / "broken.jsonl").write_text(json.dumps(TALK) + '\n{"messages": [\n')
    return root


def lint(place: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_ludus("lint", *arguments, cwd=place, env={"HF_HUB_OFFLINE": "1", **env})


def as_json(place: Path, *arguments: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(lint(place, *arguments, "--json").stdout)
    return report


def test_clean_data_passes(place: Path) -> None:
    done = lint(place, "good.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    coverage, verdict = done.stdout.splitlines()
    assert coverage.startswith("3 rows") and "--student" in coverage
    assert "0 errors, 0 warnings" in verdict


def test_all_files_of_a_data_set_are_checked(place: Path) -> None:
    report = as_json(place, "data")
    assert report["files"] == {"data/train.jsonl": 1, "data/test.jsonl": 1}


def test_without_colour_tokens_with_a_loss_are_in_brackets(place: Path) -> None:
    done = lint(place, "good.jsonl", "--student", "qwen3", "--show", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "⟦<think>\nVowels first.\n</think>\n\n<tool_call>\n" in done.stdout
    assert "</tool_call><|im_end|>\n⟧<|im_start|>user\n<tool_response>\nno\n" in done.stdout
    assert "\x1b" not in done.stdout
    assert "tokens of qwen3: p50 " in done.stdout
    assert "3 rows" in done.stdout


def test_findings_are_a_table_with_locations_and_advice(place: Path) -> None:
    done = lint(place, "good.jsonl", "--student", "words", "--show", "0")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["check", "rows", "share", "first"]
    row, advice = (line for line in lines if "drops-tool-calls" in line)
    assert row.split() == ["error", "drops-tool-calls", "1", "33.3%", "good.jsonl:1"]
    assert "6 of 6" in advice and ADVICE["drops-tool-calls"] in advice
    assert "2 errors, 1 warning" in lines[-1]


def test_warnings_fail_only_with_strict(place: Path) -> None:
    assert lint(place, "twice.jsonl").returncode == 0
    strict = lint(place, "twice.jsonl", "--strict")
    assert strict.returncode == 1
    assert "1 warning" in strict.stdout and "--strict" in strict.stdout


def test_json_output_has_the_loss_spans_of_shown_rows(place: Path) -> None:
    report = as_json(
        place, "good.jsonl", "--student", "qwen3", "--show", "3", "--max-length", "400"
    )
    assert report["passed"] is False and report["rows"] == report["rendered"] == 3
    checks = {each["check"]: each for each in report["findings"]}
    assert checks["cut-off"]["first"] == "good.jsonl:1" and checks["cut-off"]["level"] == "error"
    assert report["lengths"]["student"] == "qwen3" and report["lengths"]["max"] > 400
    long, talk, _ = report["shown"]
    assert (long["tokens"], long["spans"], long["trained"]) == (400, [], 0)
    assert sum(end - start for start, end in talk["spans"]) == talk["trained"] > 0
    assert "What is 17 plus 25?" in talk["text"]


def test_both_sides_of_a_pair_are_shown(place: Path) -> None:
    report = as_json(place, "pairs.jsonl", "--student", "qwen3")
    assert [each["side"] for each in report["shown"]] == ["chosen", "rejected"]
    assert [len(each["spans"]) for each in report["shown"]] == [4, 1], "the assistant's turns alone"


def test_control_characters_are_escaped(place: Path) -> None:
    done = lint(place, "steering.jsonl", "--student", "qwen3")
    assert "\x1b" not in done.stdout and "\\x1b]0;owned\\x07[bold]x[/bold]" in done.stdout


def test_colour_marks_tokens_with_a_loss(place: Path) -> None:
    done = lint(place, "data", "--student", "llama3", FORCE_COLOR="1", TERM="xterm-256color")
    green, dim = "\x1b[1;32m", "\x1b[2m"
    assert green in done.stdout and dim in done.stdout and "⟦" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.jsonl",), "nowhere.jsonl"),
        (("empty.jsonl",), "empty.jsonl"),
        (("text.jsonl",), "text.jsonl:1"),
        (("broken.jsonl",), "broken.jsonl:2"),
        (("qwen3",), "train.jsonl"),
        (("good.jsonl", "--student", "./none"), "'./none'"),
        (("good.jsonl", "--student", "nobody/none"), "nobody/none"),
    ],
)
def test_unusable_input_is_reported_in_one_line(
    arguments: tuple[str, ...], words: str, place: Path
) -> None:
    done = lint(place, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert words in line


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom ludus.cli.main import run\nrun(['lint', '--help'])\n"
        "print([n for n in ('torch', 'transformers', 'jsonschema', 'duckdb') "
        "if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
    assert "--max-length" in done.stdout
