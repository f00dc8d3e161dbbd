"""What `ludus collect` refuses: in one line, and before there is a run folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_stub import chat_stub
from publish.fake_hub import TOKEN, fake_hub

from cli.collect_cli import KEY, stub_args, collect, error_line, read_episodes

CLOSED_URL = "http://127.0.0.1:9"
"""The port of a service that nobody runs any more."""
CLOSED_ENDPOINT = ("--model", "m", "--llm-endpoint", CLOSED_URL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("wordel",), "No environment named 'wordel' is installed. Did you mean 'wordle'?"),
        (("catch", "--provider", "opnai"), "No provider is named 'opnai'. Did you mean 'openai'?"),
        (("catch", "--model", "gpt-5-mini"), "add --provider openai"),
        (("catch", "--provider", "openai"), "--provider openai needs a --model"),
        (("catch", "--dataset-config", "{}"), "unknown argument 'dataset_config'"),
        (("catch", "--task", '{"seed": 1}'), "comes from --seed"),
        (("catch=x,echo",), "'x' is no weight for 'catch'"),
        (("catch,,echo",), "is no mix"),
        (("catch,catch",), "names 'catch' twice"),
        (("catch,echo", "--base-url", CLOSED_URL), "--base-url is the address of one environment"),
        (("catch", "--base-url", CLOSED_URL), f"Nobody answers at {CLOSED_URL}"),
        (("catch", *CLOSED_ENDPOINT), f"Nobody answers at {CLOSED_URL}/v1"),
        (
            ("catch", *CLOSED_ENDPOINT, "--prices", "none.json"),
            "The price file none.json cannot be read",
        ),
        (("catch", *CLOSED_ENDPOINT, "--prices", "bad.json"), "bad.json is wrong at m -> output"),
        (("catch", "--push-to-hub", "rollouts"), "Give USER/NAME"),
        (("catch", "--push-to-hub", "ada/rollouts"), "run `hf auth login`, or set HF_TOKEN"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text('{"m": {"input": 1}}')
    done = collect(*arguments, cwd=tmp_path, env={"HF_HOME": str(tmp_path / "home")})
    assert words in error_line(done)
    assert done.stdout == "" and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--dataset-config", "{min: 2}", "--dataset-config is not JSON"),
        ("--dataset-config", "[2]", "--dataset-config wants a JSON object"),
        ("--max-time", "soon", "'soon' is no time; write 90s, 10m or 2h"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_in_the_last_line(
    option: str, value: str, words: str, tmp_path: Path
) -> None:
    done = collect("catch", option, value, cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == "" and not (tmp_path / "runs").exists()


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    done = collect("catch", "--provider", "openai", "--model", "gpt-5-mini", cwd=tmp_path)
    assert "OPENAI_API_KEY is neither set in the environment nor in a .env" in error_line(done)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_key_is_said_and_not_shown(tmp_path: Path) -> None:
    with chat_stub(key=KEY) as stub:
        wrong = {"OPENAI_API_KEY": "sk-wrong-0123456789abcdef"}
        done = collect(*stub_args(stub, "-o", tmp_path / "run"), env=wrong)
        assert "does not take the key from OPENAI_API_KEY" in error_line(done)
    assert wrong["OPENAI_API_KEY"] not in done.stdout + done.stderr
    assert not (tmp_path / "run").exists() and len(stub.bodies) == 0


def test_a_key_from_a_file_in_the_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"OPENAI_API_KEY={KEY}\n")
    with chat_stub(key=KEY) as stub:
        done = collect(*stub_args(stub, "-n", "1", "-o", "run"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert {headers["authorization"] for headers in stub.headers} == {f"Bearer {KEY}"}
    assert KEY not in (tmp_path / "run/episodes.jsonl").read_text()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("Years of work.")
    done = collect("catch", "-o", tmp_path)
    assert "is not empty (thesis.tex) and holds no run" in error_line(done)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_other_settings_do_not_go_on_with_a_run_and_are_listed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert collect("catch", "-n", "2", "-o", run).returncode == 0
    before = (run / "episodes.jsonl").read_bytes()
    done = collect("catch", "-n", "2", "-o", run, "--seed", "3", "--max-turns", "5")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    said = done.stderr.splitlines()
    assert said[1:-1] == ["  max_turns: 20 there, 5 here", "  seed: 0 there, 3 here"]
    assert "--no-resume" in said[-1]
    assert (run / "episodes.jsonl").read_bytes() == before and len(read_episodes(run)) == 2


def test_a_command_that_is_refused_makes_no_data_set(tmp_path: Path) -> None:
    with fake_hub() as hub:
        login = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path)}
        done = collect("wordel", "--push-to-hub", "ada/rollouts", cwd=tmp_path, env=login)
    assert "Did you mean 'wordle'?" in error_line(done)
    assert hub.repos == {}
