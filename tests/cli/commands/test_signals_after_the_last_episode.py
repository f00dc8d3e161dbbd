"""A signal while the last episodes are played: they finish, and nothing else starts."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from chat_stub import Stub, chat_stub
from ludus_process import run_ludus, start_ludus
from world import wait_until

from cli.collect_cli import CLEAN_ENV

EPISODES = 4
RECIPE = """
[collect]
env = "reasoning_gym:chain_sum"
provider = "openai"
model = "stub"
llm_endpoint = "{url}"
num_episodes = {episodes}

[curate]
runs = ["{{collect}}"]
keep_unscored = true
"""


def interrupt(command: tuple[str, ...], folder: Path, stub: Stub) -> None:
    """Send SIGINT while all episodes wait for their replies, which come only then."""
    stub.held = True
    with start_ludus(*command, cwd=folder, env=CLEAN_ENV) as process:
        wait_until(lambda: len(stub.bodies) >= EPISODES, seconds=60)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "Finishing" not in process.stderr.readline():
            assert process.poll() is None
        stub.held = False
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_no_further_candidate_is_evaluated(tmp_path: Path) -> None:
    with chat_stub() as stub:
        options = ("-n", str(EPISODES), "--llm-endpoint", stub.url, "-o", "evals")
        candidates = ("-c", "a=openai:stub", "-c", "b=random")
        command = ("eval", "reasoning_gym:chain_sum", *candidates, *options)
        interrupt(command, tmp_path, stub)
        summary = json.loads((tmp_path / "evals/a/summary.json").read_bytes())
        assert summary["episodes"] == EPISODES and summary["stopped"] is None
        assert not (tmp_path / "evals/b").exists()
        played = len(stub.bodies)
        assert run_ludus(*command, cwd=tmp_path, env=CLEAN_ENV).returncode == 0
        assert (tmp_path / "evals/b").is_dir() and len(stub.bodies) == played


def test_an_evaluation_whose_last_episodes_were_finished_is_complete(tmp_path: Path) -> None:
    with chat_stub() as stub:
        options = ("-n", str(EPISODES), "--llm-endpoint", stub.url, "-o", "evals")
        command = ("eval", "reasoning_gym:chain_sum", "-c", "a=openai:stub", *options)
        interrupt(command, tmp_path, stub)
    summary = json.loads((tmp_path / "evals/summary.json").read_bytes())
    assert (summary["complete"], summary["stopped"]) == (True, None)
    assert "Not complete" not in (tmp_path / "evals/README.md").read_text()


def test_no_further_stage_of_a_recipe_runs(tmp_path: Path) -> None:
    with chat_stub() as stub:
        (tmp_path / "loop.toml").write_text(RECIPE.format(url=stub.url, episodes=EPISODES))
        interrupt(("run", "loop.toml"), tmp_path, stub)
        assert not (tmp_path / "runs/loop/curate").exists()
        done = run_ludus("run", "loop.toml", cwd=tmp_path, env=CLEAN_ENV)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/loop/curate/train.jsonl").is_file()
