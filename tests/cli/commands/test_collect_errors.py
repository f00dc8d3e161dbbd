"""Errors of `ludus collect`: one line, and no run folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_stub import chat_stub
from publish.fake_hub import TOKEN, fake_hub

from cli.collect_cli import KEY, collect, error_line, read_episodes, stub_args

CLOSED_URL = "http://127.0.0.1:9"
"""A port on which no server listens."""
CLOSED_ENDPOINT = ("--model", "m", "--llm-endpoint", CLOSED_URL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("wordel",), "'wordle'"),
        (("catch", "--provider", "opnai"), "'openai'"),
        (("catch", "--model", "gpt-5-mini"), "--provider"),
        (("catch", "--provider", "openai"), "--model"),
        (("catch", "--dataset-config", '{"a": 1}'), "dataset_config"),
        (("catch", "--task", '{"seed": 1}'), "--seed"),
        (("catch=x,echo",), "'x'"),
        (("catch,,echo",), "catch,,echo"),
        (("catch,catch",), "'catch'"),
        (("catch,echo", "--base-url", CLOSED_URL), "--base-url"),
        (("catch", "--base-url", CLOSED_URL), CLOSED_URL),
        (("catch", *CLOSED_ENDPOINT), f"{CLOSED_URL}/v1"),
        (("catch", *CLOSED_ENDPOINT, "--prices", "none.json"), "none.json"),
        (("catch", *CLOSED_ENDPOINT, "--prices", "bad.json"), "bad.json"),
        (("catch", "--push-to-hub", "rollouts"), "USER/NAME"),
        (("catch", "--push-to-hub", "ada/rollouts"), "HF_TOKEN"),
    ],
)
def test_invalid_options_print_one_line_and_write_nothing(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text('{"m": {"input": 1}}')
    done = collect(*arguments, cwd=tmp_path, env={"HF_HOME": str(tmp_path / "home")})
    assert words in error_line(done)
    assert done.stdout == "" and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--dataset-config", "{min: 2}", "--dataset-config"),
        ("--dataset-config", "[2]", "--dataset-config"),
        ("--max-time", "soon", "'soon'"),
        ("--set", "max_atempts=3", "'max_attempts'"),
        ("--set", "seed", "KEY=VALUE"),
    ],
)
def test_an_unparsable_value_is_reported_with_exit_code_2(
    option: str, value: str, words: str, tmp_path: Path
) -> None:
    done = collect("catch", option, value, cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == "" and not (tmp_path / "runs").exists()


def test_a_missing_api_key_is_named(tmp_path: Path) -> None:
    done = collect("catch", "--provider", "openai", "--model", "gpt-5-mini", cwd=tmp_path)
    assert "OPENAI_API_KEY" in error_line(done)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_api_key_is_reported_but_not_printed(tmp_path: Path) -> None:
    with chat_stub(key=KEY) as stub:
        wrong = {"OPENAI_API_KEY": "sk-wrong-0123456789abcdef"}
        done = collect(*stub_args(stub, "-o", tmp_path / "run"), env=wrong)
        assert "OPENAI_API_KEY" in error_line(done)
    assert wrong["OPENAI_API_KEY"] not in done.stdout + done.stderr
    assert not (tmp_path / "run").exists() and len(stub.bodies) == 0


def test_an_api_key_is_read_from_dotenv(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"OPENAI_API_KEY={KEY}\n")
    with chat_stub(key=KEY) as stub:
        done = collect(*stub_args(stub, "-n", "1", "-o", "run"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert {headers["authorization"] for headers in stub.headers} == {f"Bearer {KEY}"}
    assert KEY not in (tmp_path / "run/episodes.jsonl").read_text()


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("Years of work.")
    done = collect("catch", "-o", tmp_path)
    assert "thesis.tex" in error_line(done)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_changed_settings_are_listed_and_do_not_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert collect("catch", "-n", "2", "-o", run).returncode == 0
    before = (run / "episodes.jsonl").read_bytes()
    done = collect("catch", "-n", "2", "-o", run, "--seed", "3", "--max-turns", "5")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    listed = [line.split()[0] for line in done.stderr.splitlines() if line.startswith("  ")]
    assert listed == ["max_turns:", "seed:"] and "resume" in done.stderr
    assert (run / "episodes.jsonl").read_bytes() == before and len(read_episodes(run)) == 2


def test_a_failed_command_creates_no_hub_repo(tmp_path: Path) -> None:
    with fake_hub() as hub:
        login = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path)}
        done = collect("wordel", "--push-to-hub", "ada/rollouts", cwd=tmp_path, env=login)
    assert "'wordle'" in error_line(done)
    assert hub.repos == {}
