"""`ludus serve-model`: from a served model to data that it can be trained on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cyclopts import CycloptsError
from ludus_process import run_ludus, start_ludus
from policy.models import saved
from tiny_tokenizers import of_family

from cli.in_process import Runner
from ludus.errors import LudusError

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "tiny", of_family("qwen3"))


@contextmanager
def served(model: Path, *options: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with start_ludus("serve-model", model, "--port", "0", "--device", "cpu", *options) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, line
        yield process, found.group()


def test_a_recorded_agent_can_be_shown_and_curated(model: Path, tmp_path: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "data"
    question = {"messages": [{"role": "user", "content": "Say it."}], "max_tokens": 4}
    with served(model, "--record", run) as (process, url):
        collected = run_ludus(
            *("collect", "guess_number", "--llm-endpoint", f"{url}/v1", "--model", "tiny"),
            *("-n", "3", "--max-tokens", "4", "--max-turns", "1"),
            *("-o", str(tmp_path / "collected")),
        )  # fmt: skip
        assert collected.returncode == 0, collected.stderr
        httpx.post(f"{url}{CHAT}", json=question, headers={"Ludus-Session": "mine"}, timeout=60)
        reward = httpx.post(f"{url}/sessions/mine/reward", json={"reward": 1.0}, timeout=60)
        assert reward.json()["reward"] == 1.0
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in errors
    assert "4 episodes" in output
    lines = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in lines].count(1.0) == 1
    assert all(sum(line["tokens"]["mask"]) == 4 for line in lines)
    assert "Say it." in run_ludus("show", str(run), reward.json()["episode_id"]).stdout
    curated = run_ludus("curate", str(run), "-o", str(data), "--min-reward", "1")
    assert curated.returncode == 0, curated.stderr
    (row,) = (json.loads(line) for line in (data / "train.jsonl").read_text().splitlines())
    assert json.dumps(row).count("Say it.") == 1


def test_the_model_has_the_name_of_its_folder_or_the_given_one(model: Path) -> None:
    with served(model, "--served-model-name", "mine") as (_, url):
        (entry,) = httpx.get(f"{url}/v1/models").json()["data"]
        assert entry["id"] == "mine"
        for name, status in (("mine", 200), ("tiny", 200), (str(model), 200), ("other", 404)):
            body = {"model": name, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
            assert httpx.post(f"{url}{CHAT}", json=body, timeout=60).status_code == status


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("no-such-model",), "no-such-model"),
        (("{model}", "--host", "0.0.0.0"), "token"),
        (("{model}", "--port", "70000"), "70000"),
        (("{model}", "--session-timeout", "soon"), "--session-timeout"),
        (("{model}", "--record", "{model}"), "holds no run"),
    ],
)
def test_a_bad_option_is_reported(model: Path, options: tuple[str, ...], words: str) -> None:
    arguments = [option.replace("{model}", str(model)) for option in options]
    done = Runner().invoke(["serve-model", *arguments, "--device", "cpu"])
    assert done.exit_code != 0
    assert isinstance(done.exception, LudusError | CycloptsError)
    assert words in f"{done.stderr} {done.exception}"
